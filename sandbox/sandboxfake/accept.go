package sandboxfake

import (
	"context"
	"regexp"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// accept refuses what the fake can't do with a spec. Every image is there but
// those of a registry below .invalid, where nothing ever is.
func (p *Provider) accept(spec sandbox.CreateSpec) error {
	host, _, _ := strings.Cut(spec.Image, "/")
	if strings.HasSuffix(host, ".invalid") {
		return sandbox.Errorf(sandbox.CodeUnavailable, "there is no image %s", spec.Image)
	}
	for _, m := range []struct {
		field string
		m     map[string]string
	}{{"ResourceLimits", spec.ResourceLimits}, {"ResourceRequests", spec.ResourceRequests}} {
		for k, q := range m.m {
			if !quantity.MatchString(q) || strings.Trim(q, "0.") == "" {
				return sandbox.Errorf(sandbox.CodeInvalid, "%s: %s of %q is no quantity above zero", m.field, k, q)
			}
		}
	}
	caps := p.Capabilities()
	if spec.NetworkPolicy != nil && !caps.CreateNetworkPolicy {
		return sandbox.Missing("CreateNetworkPolicy", p.Name())
	}
	if (spec.CredentialProxy || !spec.Vault.IsZero()) && !caps.EgressCredentialInjection {
		return sandbox.Missing("EgressCredentialInjection", p.Name())
	}
	return caps.CheckLevel(p.Name(), spec.PermissionLevel)
}

var quantity = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?(m|[kMGT]i?)?$`)

// portBudget is how long a create waits for a port, on which nothing listens here.
const portBudget = time.Minute

func awaitPort(ctx context.Context, port int) error {
	t := time.NewTimer(portBudget)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return sandbox.Errorf(sandbox.CodeUnavailable, "nothing listened on port %d within %v", port, portBudget)
	}
}

// Twin makes a second sandbox with the metadata of a spec, behind the back of
// whoever uses the provider, and gives its id: what an ambiguous assignment is.
func (p *Provider) Twin(_ context.Context, spec sandbox.CreateSpec) (string, error) {
	if err := spec.Validate(); err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.machine(spec)
	p.machines[m.id] = m
	m.schedule(spec.TTL)
	return m.id, nil
}
