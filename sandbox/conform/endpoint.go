package conform

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// execdPort is reserved in every sandbox (sandbox/execd.Port).
const execdPort = 44772

// somePort is one that a sandbox may use for anything.
const somePort = 8080

func endpointClauses() []Clause[*Stage] {
	return []Clause[*Stage]{
		{ID: "endpoint.absolute", Doc: "An endpoint is an absolute http or https URL without user or password.",
			Check: withHandle(func(ctx context.Context, _ *Stage, h sandbox.Handle) error {
				e, err := h.Endpoint(ctx, somePort)
				if err != nil {
					return NoError("asking for the endpoint of a port", err)
				}
				if e.URL == nil || e.URL.Scheme != "http" && e.URL.Scheme != "https" || e.URL.Host == "" || e.URL.User != nil {
					return Unmet("an absolute http or https URL", "%s", e)
				}
				return nil
			})},
		{ID: "endpoint.range", Doc: "A port outside 1 to 65535 is refused with SANDBOX_CONFIG_INVALID, signed or not.",
			Check: withHandle(func(ctx context.Context, _ *Stage, h sandbox.Handle) error {
				for _, port := range []int{0, -1, 65536, 1 << 20} {
					_, err := h.Endpoint(ctx, port)
					if err := Refused(fmt.Sprintf("the endpoint of port %d", port), err, sandbox.CodeInvalid); err != nil {
						return err
					}
					_, err = h.SignedEndpoint(ctx, port, time.Now().Add(time.Hour))
					if errors.Is(err, sandbox.ErrUnsupported) {
						continue
					}
					if err := Refused(fmt.Sprintf("a signed endpoint of port %d", port), err, sandbox.CodeInvalid); err != nil {
						return err
					}
				}
				return nil
			})},
		{ID: "endpoint.own", Doc: "An endpoint reaches its own sandbox and port: no two have the same address and headers.",
			Check: withHandle(func(ctx context.Context, s *Stage, a sandbox.Handle) error {
				b, err := s.Create(ctx)
				if err != nil {
					return NoError("creating a second sandbox", err)
				}
				var seen []sandbox.Endpoint
				for _, h := range []sandbox.Handle{a, b} {
					for _, port := range []int{somePort, somePort + 1} {
						e, err := h.Endpoint(ctx, port)
						if err != nil {
							return NoError("asking for the endpoint of a port", err)
						}
						for _, o := range seen {
							if o.URL.String() == e.URL.String() && maps.Equal(o.Headers, e.Headers) {
								return Unmet("an address for each sandbox and port", "%s twice", e)
							}
						}
						seen = append(seen, e)
					}
				}
				return nil
			})},
		{ID: "endpoint.named", Doc: "An endpoint that names a sandbox names its own.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				e, err := h.Endpoint(ctx, somePort)
				if err != nil {
					return NoError("asking for the endpoint of a port", err)
				}
				if id, ok := s.EndpointNamesSandbox(e.URL.String()); ok && id != h.SandboxID() {
					return Unmet(h.SandboxID()+", or no name", "%s names %s", e, id)
				}
				return nil
			})},
		{ID: "endpoint.signed", Doc: "A signed endpoint carries its credential in the URL and needs no header; who can't sign refuses with SANDBOX_SIGNED_ENDPOINT_UNSUPPORTED.",
			Check: withHandle(func(ctx context.Context, _ *Stage, h sandbox.Handle) error {
				signed, err := h.SignedEndpoint(ctx, somePort, time.Now().Add(time.Hour))
				if errors.Is(err, sandbox.ErrUnsupported) {
					return Refused("a signed endpoint", err, sandbox.CodeSignedUnsupported)
				}
				if err != nil {
					return NoError("asking for a signed endpoint", err)
				}
				plain, err := h.Endpoint(ctx, somePort)
				switch {
				case err != nil:
					return NoError("asking for the endpoint of a port", err)
				case signed.URL == nil || len(signed.Headers) > 0:
					return Unmet("a URL that needs no header", "%s with %d headers", signed, len(signed.Headers))
				case signed.URL.String() == plain.URL.String():
					return Unmet("a URL with a credential", "the unsigned one, %s", plain)
				}
				return nil
			})},
		{ID: "endpoint.signed.past", Doc: "An endpoint can't be signed until a time that is over.",
			Check: withHandle(func(ctx context.Context, _ *Stage, h sandbox.Handle) error {
				if e, err := h.SignedEndpoint(ctx, somePort, time.Now().Add(-time.Minute)); err == nil {
					return Unmet("a refusal", "%s", e)
				}
				return nil
			})},
		{ID: "endpoint.signed.reserved", Doc: "The port of the sandbox's own daemon is never signed.",
			Check: withHandle(func(ctx context.Context, _ *Stage, h sandbox.Handle) error {
				_, err := h.SignedEndpoint(ctx, execdPort, time.Now().Add(time.Hour))
				if errors.Is(err, sandbox.ErrUnsupported) {
					return nil
				}
				return Refused(fmt.Sprintf("a signed endpoint of port %d", execdPort), err, sandbox.CodePortReserved)
			})},
	}
}
