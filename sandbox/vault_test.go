package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

const canary = "hunter2-canary-value"

func goodPlan() sandbox.VaultPlan {
	return sandbox.VaultPlan{
		Model: []sandbox.ModelCredential{{Name: "model", Value: sandbox.NewSecret(canary), Header: "X-Api-Key", BaseURL: "https://model.example.com/v1", Paths: []string{"/v1/**"},
			Substitute: []sandbox.Substitution{{Name: "slot", Value: sandbox.NewSecret(canary), Placeholder: "astrabox-slot-credential-1"}}}},
		Environment: []sandbox.EnvironmentCredential{{ID: "e1", Name: "TOKEN", Value: sandbox.NewSecret(canary), Placeholder: sandbox.NewPlaceholder("", "e1"),
			InHeaders: true, Reach: sandbox.Reach{Hosts: []string{"api.example.com"}}}},
		MCP: []sandbox.MCPCredential{{Name: "mcp", ServerURL: "https://mcp.example.com/", Headers: map[string]sandbox.Secret{"Authorization": sandbox.NewSecret(canary)}}},
		HTTPBasic: []sandbox.BasicCredentials{{Scope: "git", Credentials: []sandbox.BasicCredential{
			{ID: "g1", URL: "https://git.example.com/", Username: "u", Password: sandbox.NewSecret(canary)}}}},
	}
}

// holder shows what fmt does with a secret in an unexported field.
type holder struct {
	secret sandbox.Secret
	plan   sandbox.VaultPlan
}

// Nowhere is a value shown but by Reveal.
func TestSecretsAreNeverShown(t *testing.T) {
	spec := goodSpec()
	spec.Vault = goodPlan()
	spec.Env = map[string]string{"PASSWORD": canary}
	spec.DeathCallbackURL = "https://astrabox.example.com/" + canary
	values := map[string]any{
		"secret": sandbox.NewSecret(canary), "plan": spec.Vault, "plan pointer": &spec.Vault, "spec": spec, "spec pointer": &spec,
		"unexported": holder{sandbox.NewSecret(canary), spec.Vault}, "slice": []sandbox.Secret{sandbox.NewSecret(canary)}, "map": spec.Vault.MCP[0].Headers,
	}
	for name, v := range values {
		var texts []string
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			texts = append(texts, fmt.Sprintf(verb, v))
		}
		for _, json := range []bool{false, true} {
			var log bytes.Buffer
			var h slog.Handler = slog.NewTextHandler(&log, nil)
			if json && !strings.HasPrefix(name, "spec") {
				h = slog.NewJSONHandler(&log, nil)
			}
			slog.New(h).Info("x", "v", v)
			texts = append(texts, log.String())
		}
		if !strings.HasPrefix(name, "spec") { // a spec's own JSON is what is stored
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(b))
		}
		texts = append(texts, fmt.Errorf("x: %v", v).Error())
		for _, text := range texts {
			if strings.Contains(text, canary) || strings.Contains(text, fmt.Sprintf("%x", canary)) {
				t.Errorf("%s shows it: %s", name, text)
			}
		}
	}
	b, err := json.Marshal(spec.Vault)
	if err != nil || strings.Contains(string(b), canary) {
		t.Errorf("%s %v", b, err)
	}
	if sandbox.NewSecret(canary).Reveal() != canary || (sandbox.Secret{}).Reveal() != "" || !(sandbox.Secret{}).IsZero() {
		t.Error("Reveal doesn't")
	}
	if !sandbox.NewSecret("a").Equal(sandbox.NewSecret("a")) || sandbox.NewSecret("a").Equal(sandbox.Secret{}) {
		t.Error("Equal doesn't compare values")
	}
}

// A stored plan comes back without its values, and is then refused; what is nil
// and what is empty stay what they are.
func TestStoredPlan(t *testing.T) {
	spec := goodSpec()
	spec.Vault = goodPlan()
	spec.Vault.MCP = []sandbox.MCPCredential{}
	spec.Vault.HTTPBasic = nil
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), canary) {
		t.Errorf("the stored spec holds a secret: %s", b)
	}
	var back sandbox.CreateSpec
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Vault.MCP == nil || back.Vault.HTTPBasic != nil || back.Vault.IsZero() {
		t.Errorf("%#v", back.Vault.MCP)
	}
	if err := back.Validate(); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "Vault.Model[0].Value") {
		t.Errorf("%v", err)
	}
	var s sandbox.Secret
	for _, text := range []string{`"hunter2"`, `5`, `{"value": "x"}`} {
		if err := json.Unmarshal([]byte(text), &s); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s was read: %v", text, err)
		}
	}
	plain, err := json.Marshal(goodSpec())
	if err != nil || strings.Contains(string(plain), "Vault") {
		t.Errorf("a spec without a vault: %s %v", plain, err)
	}
}

func TestVaultPlanValidate(t *testing.T) {
	good := goodPlan()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := (sandbox.VaultPlan{}).Validate(); err != nil || !(sandbox.VaultPlan{}).IsZero() {
		t.Errorf("the zero plan: %v", err)
	}
	if (sandbox.VaultPlan{Model: []sandbox.ModelCredential{}}).IsZero() {
		t.Error("a plan that revokes is no plan that does nothing")
	}
	secret := sandbox.NewSecret(canary)
	for _, tt := range []struct {
		field string
		spoil func(*sandbox.VaultPlan)
	}{
		{"Model[0].Name", func(p *sandbox.VaultPlan) { p.Model[0].Name = " " }},
		{"Model[0].Value", func(p *sandbox.VaultPlan) { p.Model[0].Value = sandbox.Secret{} }},
		{"Model[0].Value", func(p *sandbox.VaultPlan) { p.Model[0].Value = sandbox.NewSecret(canary + "\r\nX: y") }},
		{"Model[0].Value", func(p *sandbox.VaultPlan) {
			p.Model[0].Value = sandbox.NewSecret(strings.Repeat("x", sandbox.MaxSecret+1))
		}},
		{"Model[0].Header", func(p *sandbox.VaultPlan) { p.Model[0].Header = "Host" }},
		{"Model[0].Header", func(p *sandbox.VaultPlan) { p.Model[0].Header = "a b" }},
		{"Model[0].BaseURL", func(p *sandbox.VaultPlan) { p.Model[0].BaseURL = "http://model.example.com" }},
		{"Model[0].BaseURL", func(p *sandbox.VaultPlan) { p.Model[0].BaseURL = "https://u:" + canary + "@model.example.com" }},
		{"Model[0].BaseURL", func(p *sandbox.VaultPlan) { p.Model[0].BaseURL = "/v1" }},
		{"Model[0].BaseURL", func(p *sandbox.VaultPlan) { p.Model[0].BaseURL = "https://*.example.com" }},
		{"Model[0].Paths", func(p *sandbox.VaultPlan) { p.Model[0].Paths = []string{"v1/*"} }},
		{"Model[0].Methods", func(p *sandbox.VaultPlan) { p.Model[0].Methods = []string{"G ET"} }},
		{"Model[0].Substitute[0].Placeholder", func(p *sandbox.VaultPlan) { p.Model[0].Substitute[0].Placeholder = "short" }},
		{"Model[0].Substitute[0].Placeholder", func(p *sandbox.VaultPlan) { p.Model[0].Substitute[0].Placeholder = "prefix-" + canary }},
		{"Model[0].Substitute[0].Name", func(p *sandbox.VaultPlan) { p.Model[0].Substitute[0].Name = "model" }},
		{"Environment[0].ID", func(p *sandbox.VaultPlan) { p.Environment[0].ID = "" }},
		{"Environment[0].Placeholder", func(p *sandbox.VaultPlan) { p.Environment[0].Placeholder = "has a space in it, which breaks" }},
		{"Environment[0].Placeholder", func(p *sandbox.VaultPlan) { p.Environment[0].Placeholder = "astrabox-slot-credential-1" }},
		{"Environment[0]", func(p *sandbox.VaultPlan) { p.Environment[0].InHeaders = false }},
		{"Environment[0].Reach.Hosts", func(p *sandbox.VaultPlan) { p.Environment[0].Reach.Hosts = []string{"10.0.0.0/8"} }},
		{"Environment[0].Reach.Hosts", func(p *sandbox.VaultPlan) { p.Environment[0].Reach.Hosts = []string{"a.com:0"} }},
		{"Environment[0].Reach.Hosts", func(p *sandbox.VaultPlan) { p.Environment[0].Reach.AnyHost = true }},
		{"MCP[0].ServerURL", func(p *sandbox.VaultPlan) { p.MCP[0].ServerURL = "https://mcp.example.com/?token=" + canary }},
		{"MCP[0].Headers", func(p *sandbox.VaultPlan) { p.MCP[0].Headers = nil }},
		{"MCP[0].Headers", func(p *sandbox.VaultPlan) { p.MCP[0].Headers = map[string]sandbox.Secret{"X-Forwarded-For": secret} }},
		{"MCP[0].Headers", func(p *sandbox.VaultPlan) {
			p.MCP[0].Headers = map[string]sandbox.Secret{"Proxy-Authorization": secret}
		}},
		{"HTTPBasic[1].Scope", func(p *sandbox.VaultPlan) { p.HTTPBasic = append(p.HTTPBasic, p.HTTPBasic[0]) }},
		{"HTTPBasic[0].Credentials[0].URL", func(p *sandbox.VaultPlan) { p.HTTPBasic[0].Credentials[0].URL = "http://git.example.com" }},
		{"HTTPBasic[0].Credentials[0].Username", func(p *sandbox.VaultPlan) { p.HTTPBasic[0].Credentials[0].Username = "a:b" }},
		{"HTTPBasic[0].Credentials[0].Password", func(p *sandbox.VaultPlan) { p.HTTPBasic[0].Credentials[0].Password = sandbox.Secret{} }},
	} {
		p := goodPlan()
		tt.spoil(&p)
		err := p.Validate()
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "Vault."+tt.field+":") || strings.Contains(err.Error(), canary) {
			t.Errorf("spoilt %s: %v", tt.field, err)
		}
	}
	p := goodPlan()
	p.Model[0].BaseURL, p.Model[0].InsecureHTTP = "http://model.example.com", true
	if err := p.Validate(); err != nil {
		t.Errorf("plain HTTP that was asked for: %v", err)
	}
}

func TestPlaceholders(t *testing.T) {
	a, b := sandbox.NewPlaceholder("", "c1"), sandbox.NewPlaceholder("", "c1")
	if a == b || !strings.HasPrefix(a, "ASTRABOX-VAULT-CRED::c1::") || len(a) != len("ASTRABOX-VAULT-CRED::c1::")+32 {
		t.Errorf("%s, %s", a, b)
	}
	if x, y := sandbox.NewPlaceholder("scope", "c1"), sandbox.NewPlaceholder("scope", "c1"); x != y || x == sandbox.NewPlaceholder("other", "c1") {
		t.Errorf("%s, %s", x, y)
	}
}

func TestReach(t *testing.T) {
	to := func(url string) sandbox.Target {
		scheme, rest, _ := strings.Cut(url, "://")
		host, path, _ := strings.Cut(rest, "/")
		t := sandbox.Target{Scheme: scheme, Host: host, Method: "GET", Path: "/" + path}
		if h, port, ok := strings.Cut(host, ":"); ok {
			t.Host = h
			_, _ = fmt.Sscan(port, &t.Port)
		}
		return t
	}
	for _, tt := range []struct {
		name  string
		reach sandbox.Reach
		ok    []string
		not   []string
	}{
		{"nothing", sandbox.Reach{}, nil, []string{"https://a.com/"}},
		{"an empty list", sandbox.Reach{Hosts: []string{}}, nil, []string{"https://a.com/"}},
		{"any host", sandbox.Reach{AnyHost: true}, []string{"https://a.com/", "https://192.0.2.1/"}, []string{"http://a.com/", "ftp://a.com/"}},
		{"exact", sandbox.Reach{Hosts: []string{"A.com"}}, []string{"https://a.com/", "https://A.COM:8443/"}, []string{"https://b.com/", "https://x.a.com/", "http://a.com/"}},
		{"wildcard", sandbox.Reach{Hosts: []string{"*.a.com"}}, []string{"https://x.a.com/", "https://y.x.a.com/"}, []string{"https://a.com/"}},
		{"port", sandbox.Reach{Hosts: []string{"a.com:8443"}}, []string{"https://a.com:8443/"}, []string{"https://a.com/", "https://a.com:443/"}},
		{"the usual port", sandbox.Reach{Hosts: []string{"a.com:443"}}, []string{"https://a.com/", "https://a.com:443/"}, []string{"https://a.com:8443/"}},
		{"plain HTTP", sandbox.Reach{Hosts: []string{"a.com"}, InsecureHTTP: true}, []string{"http://a.com/"}, []string{"ws://a.com/"}},
		{"methods", sandbox.Reach{Hosts: []string{"a.com"}, Methods: []string{"get"}}, []string{"https://a.com/"}, nil},
		{"other methods", sandbox.Reach{Hosts: []string{"a.com"}, Methods: []string{"POST"}}, nil, []string{"https://a.com/"}},
		{"paths", sandbox.Reach{Hosts: []string{"a.com"}, Paths: []string{"/v1/*", "/files/**"}},
			[]string{"https://a.com/v1/x", "https://a.com/files/a/b"},
			[]string{"https://a.com/v1/x/y", "https://a.com/", "https://a.com/files", "https://a.com/files/../v2", "https://a.com/files/%2e%2e/v2", "https://a.com/v1/a%2fb", "https://a.com/files/a\\b"}},
		{"all paths", sandbox.Reach{Hosts: []string{"a.com"}, Paths: []string{"/**"}}, []string{"https://a.com/", "https://a.com/x/y"}, nil},
		{"no path", sandbox.Reach{Hosts: []string{"a.com"}, Paths: []string{}}, nil, []string{"https://a.com/"}},
	} {
		for _, url := range tt.ok {
			if err := tt.reach.Check(to(url)); err != nil {
				t.Errorf("%s: %s: %v", tt.name, url, err)
			}
		}
		for _, url := range tt.not {
			if err := tt.reach.Check(to(url)); !errors.Is(err, sandbox.ErrOutOfReach) {
				t.Errorf("%s: %s: %v", tt.name, url, err)
			}
		}
	}
}

func TestVaultHosts(t *testing.T) {
	hosts, err := goodPlan().Hosts()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"api.example.com", "git.example.com", "mcp.example.com", "model.example.com"}, hosts); diff != "" {
		t.Error(diff)
	}
}

func FuzzReach(f *testing.F) {
	f.Add("a.com", "https", "a.com", 443, "/v1/*", "/v1/x")
	f.Add("*.a.com:8443", "http", "x.a.com", 8443, "/**", "/../x")
	f.Fuzz(func(t *testing.T, rule, scheme, host string, port int, pattern, path string) {
		r := sandbox.Reach{Hosts: []string{rule}, Paths: []string{pattern}}
		if r.Check(sandbox.Target{Scheme: scheme, Host: host, Port: port, Path: path}) != nil {
			return
		}
		d, err := sandbox.ParseDestination(host)
		switch {
		case err != nil:
			t.Errorf("a credential may go to %q, which is no host", host)
		case !strings.EqualFold(scheme, "https"):
			t.Errorf("a credential may go over %q", scheme)
		case strings.Contains(path, "/../") || !strings.HasPrefix(path, "/"):
			t.Errorf("a credential may go to %q by the pattern %q", path, pattern)
		case strings.HasPrefix(rule, "*.") && "*."+d.String() == strings.ToLower(strings.TrimSuffix(rule, ".")):
			t.Errorf("%q covers its apex %q", rule, host)
		}
	})
}
