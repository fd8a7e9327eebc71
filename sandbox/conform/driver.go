package conform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/astrabox/astrabox/sandbox"
)

func isErr(err, target error) bool { return errors.Is(err, target) }

var settingForm = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

func driverClauses() []Clause[Subject] {
	return []Clause[Subject]{
		{ID: "driver.seam", Doc: "The driver was built against this major version of the seam.",
			Check: func(_ context.Context, s Subject) error {
				want, _, _ := strings.Cut(sandbox.SeamVersion, ".")
				if got, _, _ := strings.Cut(s.Driver.SeamVersion, "."); got != want {
					return Unmet("a seam version "+want+".x", "%q", s.Driver.SeamVersion)
				}
				return nil
			}},
		{ID: "driver.settings", Doc: "Each setting has the name of an environment variable, once, and a sentence that says what it is.",
			Check: func(_ context.Context, s Subject) error {
				seen := map[string]bool{}
				for _, v := range s.Driver.Settings {
					switch {
					case !settingForm.MatchString(v.Name):
						return Unmet("a name that matches "+settingForm.String(), "the setting %q", v.Name)
					case seen[v.Name]:
						return Unmet("each setting once", "%s twice", v.Name)
					case strings.TrimSpace(v.Doc) == "":
						return Unmet("a Doc for each setting", "%s without", v.Name)
					}
					seen[v.Name] = true
				}
				return nil
			}},
		{ID: "driver.settings.owned", Doc: "New reads no environment variable that the driver doesn't list as its setting.",
			Check: func(ctx context.Context, s Subject) error {
				var mu sync.Mutex
				var foreign []string
				if _, err := s.new(ctx, func(name string) (string, bool) {
					mu.Lock()
					defer mu.Unlock()
					if !slices.ContainsFunc(s.Driver.Settings, func(v sandbox.Setting) bool { return v.Name == name }) {
						foreign = append(foreign, name)
					}
					return "", false
				}); err != nil {
					return NoError("calling New again with the same host", err)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(foreign) > 0 {
					return Unmet("only listed settings to be read", "%s", strings.Join(foreign, ", "))
				}
				return nil
			}},
		{ID: "driver.new.bare", Doc: "New in an empty environment gives a provider or refuses with SANDBOX_CONFIG_INVALID; it doesn't panic.",
			Check: func(ctx context.Context, s Subject) error {
				bare := s
				bare.Host = sandbox.Host{InstallationID: Installation}
				p, err := bare.new(ctx, nil)
				if err != nil {
					return Refused("New without any setting", err, sandbox.CodeInvalid)
				}
				if missing(p) {
					return Unmet("a provider or an error", "neither")
				}
				return nil
			}},
		{ID: "driver.new.garbage", Doc: "New with a setting that makes no sense gives a provider or refuses with SANDBOX_CONFIG_INVALID, naming the setting.",
			Check: func(ctx context.Context, s Subject) error {
				for _, v := range s.Driver.Settings {
					_, err := s.new(ctx, func(name string) (string, bool) { return "\x01://%%\x7f conform", name == v.Name })
					if err == nil {
						continue
					}
					if e := Refused("New with nonsense in "+v.Name, err, sandbox.CodeInvalid); e != nil {
						return e
					}
					if !strings.Contains(err.Error(), v.Name) {
						return Unmet("the refusal to name "+v.Name, "%v", err)
					}
				}
				return nil
			}},
		{ID: "secrets.new", Doc: "No secret setting's value is in an error of New.",
			Check: func(ctx context.Context, s Subject) error {
				for _, v := range s.Driver.Settings {
					if !v.Secret {
						continue
					}
					// With everything else wrong, New has the most to say.
					_, err := s.new(ctx, func(name string) (string, bool) {
						if name == v.Name {
							return canary + "\x01\n", true
						}
						return "\x01 nonsense", true
					})
					if err == nil {
						continue
					}
					for _, text := range printed(err) {
						if strings.Contains(text, canary) {
							return Unmet("an error without the value of "+v.Name, "%s", strings.ReplaceAll(text, canary, "[the value]"))
						}
					}
				}
				return nil
			}},
		{ID: "secrets.print", Doc: "Printing the provider, by any verb and in a log line, shows no secret setting's value.",
			Check: func(ctx context.Context, s Subject) error {
				p, err := s.new(ctx, func(name string) (string, bool) {
					return canary, slices.ContainsFunc(s.Driver.Settings, func(v sandbox.Setting) bool { return v.Secret && v.Name == name })
				})
				if err != nil {
					return Skip("New refuses an invented secret: %s", strings.ReplaceAll(err.Error(), canary, "[the value]"))
				}
				for _, text := range printed(p) {
					if strings.Contains(text, canary) {
						return Unmet("no secret in the provider's printed form", "%s", strings.ReplaceAll(text, canary, "[the value]"))
					}
				}
				return nil
			}},
	}
}

// canary is a secret that nobody has.
const canary = "conform-secret-4d6f0c5e"

// printed gives v in the forms in which values get into logs and messages; of
// an error also its causes, which are for logs.
func printed(v any) (texts []string) {
	switch e := v.(type) {
	case interface{ Unwrap() error }:
		if cause := e.Unwrap(); cause != nil {
			texts = printed(cause)
		}
	case interface{ Unwrap() []error }:
		for _, cause := range e.Unwrap() {
			texts = append(texts, printed(cause)...)
		}
	}
	var text, js strings.Builder
	slog.New(slog.NewTextHandler(&text, nil)).Info("x", "v", v)
	slog.New(slog.NewJSONHandler(&js, nil)).Info("x", "v", v)
	return append(texts, fmt.Sprint(v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v), text.String(), js.String())
}

// new calls the driver's New with the subject's host and the settings that
// override says. The provider is closed at once: what is looked at afterwards
// needs no I/O.
func (s Subject) new(ctx context.Context, override func(name string) (value string, set bool)) (sandbox.Provider, error) {
	if s.Driver.New == nil {
		return nil, Unmet("a driver with New", "nil")
	}
	h := s.Host
	if h.Log == nil {
		h.Log = slog.New(slog.DiscardHandler)
	}
	h.Getenv = func(name string) string {
		if override != nil {
			if v, set := override(name); set {
				return v
			}
		}
		if s.Host.Getenv == nil {
			return ""
		}
		return s.Host.Getenv(name)
	}
	p, err := s.Driver.New(ctx, h)
	if c, ok := p.(io.Closer); ok && err == nil && !missing(p) && !same(p, s.Provider) {
		defer c.Close()
	}
	return p, err
}

// same reports whether both are one pointer: a driver may give the same
// provider each time.
func same(a, b sandbox.Provider) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	return x.Kind() == reflect.Pointer && y.Kind() == reflect.Pointer && x.Pointer() == y.Pointer()
}
