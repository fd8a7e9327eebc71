package sandbox_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

func TestNetworkPolicyNormalize(t *testing.T) {
	own := netip.MustParsePrefix("10.0.0.0/8")
	for _, tt := range []struct {
		name  string
		in    sandbox.NetworkPolicy
		hosts []string
		wrong string // what the error says; empty: accepted
	}{
		{"zero", sandbox.NetworkPolicy{}, nil, ""},
		{"limited with none", sandbox.NetworkPolicy{Mode: "limited", AllowedHosts: []string{}}, nil, ""},
		{"forms", sandbox.NetworkPolicy{AllowedHosts: []string{"Example.COM.", "example.com", "*.Example.com", "192.0.2.7", "192.0.2.9/24", "2001:DB8::1", "2001:db8::1/32", "::ffff:192.0.2.7", "192.0.2.7/32", "localhost"}},
			[]string{"example.com", "*.example.com", "192.0.2.7", "192.0.2.0/24", "2001:db8::1", "2001:db8::/32", "localhost"}, ""},
		{"unrestricted with hosts", sandbox.NetworkPolicy{Mode: "unrestricted", AllowedHosts: []string{"a.com"}}, nil, "takes no allowed hosts"},
		{"unknown mode", sandbox.NetworkPolicy{Mode: "open"}, nil, `"open"`},
		{"metadata", limited("169.254.169.254"), nil, "169.254.0.0/16"},
		{"all of IPv4", limited("0.0.0.0/0"), nil, "169.254.0.0/16"},
		{"part of metadata", limited("169.254.1.0/24"), nil, "169.254.0.0/16"},
		{"metadata, mapped", limited("::ffff:169.254.169.254"), nil, "169.254.0.0/16"},
		{"mapped range", limited("::ffff:0:0/96"), nil, "169.254.0.0/16"},
		{"more than mapped", limited("::/0"), nil, "169.254.0.0/16"},
		{"metadata by NAT64", limited("64:ff9b::a9fe:a9fe"), nil, "169.254.0.0/16"},
		{"metadata by 6to4", limited("2002:a9fe:a9fe::1"), nil, "169.254.0.0/16"},
		{"metadata, compatible", limited("::169.254.169.254"), nil, "169.254.0.0/16"},
		{"the backend's own", limited("10.1.2.3"), nil, "10.0.0.0/8"},
		{"over the backend's own", limited("10.0.0.0/7"), nil, "10.0.0.0/8"},
		{"a scheme", limited("https://a.com"), nil, "scheme"},
		{"a port", limited("a.com:443"), nil, "port"},
		{"a path", limited("a.com/x"), nil, "path"},
		{"a bad range", limited("10.0.0.0/33"), nil, "CIDR"},
		{"inner wildcard", limited("a.*.com"), nil, "wildcard"},
		{"all", limited("*"), nil, "wildcard"},
		{"half wildcard", limited("*a.com"), nil, "wildcard"},
		{"two wildcards", limited("*.*.com"), nil, "wildcard"},
		{"empty", limited(""), nil, "empty"},
		{"dots", limited("a..com"), nil, "empty label"},
		{"only a dot", limited("."), nil, "empty label"},
		{"hyphen", limited("-a.com"), nil, "hyphen"},
		{"underscore", limited("a_b.com"), nil, "character"},
		{"space", limited(" a.com"), nil, "not a host"},
		{"brackets", limited("[::1]"), nil, "not a host"},
		{"zone", limited("fe80::1%eth0"), nil, "not a host"},
		{"user", limited("u@a.com"), nil, "not a host"},
		{"unicode", limited("exämple.com"), nil, "xn--"},
		{"a letter that turns into k", limited("\u212a.com"), nil, "xn--"},
		{"short IPv4", limited("127.1"), nil, "number"},
		{"decimal IPv4", limited("2130706433"), nil, "number"},
		{"hex IPv4", limited("0x7f.0x1"), nil, "number"},
		{"octal IPv4", limited("0177.0.0.1"), nil, "number"},
		{"long label", limited(strings.Repeat("a", 64) + ".com"), nil, "63"},
		{"long name", limited(strings.Repeat("a.", 127) + "com"), nil, "253"},
		{"too many", limited(slices.Repeat([]string{"a.com"}, sandbox.MaxAllowedHosts+1)...), nil, "more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.in.Normalize(own)
			if tt.wrong != "" {
				if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.wrong) || !strings.Contains(err.Error(), "NetworkPolicy") {
					t.Errorf("%v, want one that says %q", err, tt.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sandbox.NetworkPolicy{Mode: sandbox.NetworkLimited, AllowedHosts: tt.hosts}, got); diff != "" {
				t.Error(diff)
			}
			again, err := got.Normalize(own)
			if diff := cmp.Diff(got, again); diff != "" || err != nil {
				t.Errorf("the normal form isn't: %v %s", err, diff)
			}
		})
	}
	var zero sandbox.NetworkPolicy
	if err := json.Unmarshal([]byte("{}"), &zero); err != nil {
		t.Fatal(err)
	}
	if n, err := zero.Normalize(); err != nil || n.Mode != sandbox.NetworkLimited || n.AllowedHosts != nil {
		t.Errorf("an empty document is %+v (%v)", n, err)
	}
}

func limited(hosts ...string) sandbox.NetworkPolicy {
	return sandbox.NetworkPolicy{Mode: sandbox.NetworkLimited, AllowedHosts: hosts}
}

func TestDestinationMatches(t *testing.T) {
	for _, tt := range []struct {
		rule, to string
		want     bool
	}{
		{"example.com", "EXAMPLE.com.", true},
		{"example.com", "a.example.com", false},
		{"*.example.com", "a.example.com", true},
		{"*.example.com", "a.b.example.com", true},
		{"*.example.com", "example.com", false},
		{"*.example.com", "evilexample.com", false},
		{"*.example.com", "*.example.com", false},
		{"192.0.2.0/24", "192.0.2.9", true},
		{"192.0.2.0/24", "::ffff:192.0.2.9", true},
		{"192.0.2.0/24", "192.0.3.9", false},
		{"192.0.2.9", "192.0.2.9/31", false},
		{"example.com", "192.0.2.9", false},
		{"192.0.2.9", "example.com", false},
		{"example.com", "", false},
		{"example.com", "https://example.com", false},
	} {
		d, err := sandbox.ParseDestination(tt.rule)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Matches(tt.to); got != tt.want {
			t.Errorf("%s covers %q: %v", tt.rule, tt.to, got)
		}
	}
	if (sandbox.Destination{}).Matches("") || (sandbox.Destination{}).Matches("a.com") {
		t.Error("the zero destination covers something")
	}
}

func TestEgressRules(t *testing.T) {
	own := netip.MustParsePrefix("10.0.0.0/8")
	plan := sandbox.VaultPlan{
		Model: []sandbox.ModelCredential{{Name: "m", BaseURL: "https://Model.example.com/v1"}},
		MCP:   []sandbox.MCPCredential{{Name: "x", ServerURL: "https://mcp.example.com:8443/"}},
		Environment: []sandbox.EnvironmentCredential{{ID: "e", Reach: sandbox.Reach{Hosts: []string{"api.example.com:443", "*.git.example.com"}}},
			{ID: "f", Reach: sandbox.Reach{AnyHost: true}}},
		HTTPBasic: []sandbox.BasicCredentials{{Scope: "s", Credentials: []sandbox.BasicCredential{{ID: "g", URL: "https://model.example.com/x"}}}},
	}
	r, err := sandbox.EgressRulesFor(limited("a.com", "mcp.example.com"), plan, own, own, sandbox.MetadataRange)
	if err != nil {
		t.Fatal(err)
	}
	want := sandbox.EgressRules{Default: sandbox.EgressDeny, Deny: []netip.Prefix{sandbox.MetadataRange, own},
		Allow: []string{"a.com", "mcp.example.com", "*.git.example.com", "api.example.com", "model.example.com"}}
	if diff := cmp.Diff(want, r, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"*.git.example.com", "model.example.com"}, r.Missing([]string{"A.com", "api.example.com", "mcp.example.com", "not a host"})); diff != "" {
		t.Errorf("what is missing:\n%s", diff)
	}
	for to, want := range map[string]bool{
		"a.com": true, "b.com": false, "x.git.example.com": true, "10.1.1.1": false, "169.254.169.254": false, "192.0.2.1": false, "*.a.com": false, "": false,
	} {
		if r.Allows(to) != want {
			t.Errorf("limited lets %q pass: %v", to, !want)
		}
	}

	open, err := sandbox.EgressRulesFor(sandbox.NetworkPolicy{Mode: sandbox.NetworkUnrestricted}, plan, own)
	if err != nil || open.Default != sandbox.EgressAllow || len(open.Allow) != 0 || len(open.Missing(nil)) != 0 {
		t.Errorf("%+v %v", open, err)
	}
	for to, want := range map[string]bool{"b.com": true, "192.0.2.1": true, "10.1.1.1": false, "169.254.169.254": false, "::ffff:169.254.169.254": false, "64:ff9b::a9fe:a9fe": false, "192.0.2.0/24": false} {
		if open.Allows(to) != want {
			t.Errorf("unrestricted lets %q pass: %v", to, !want)
		}
	}

	plan.Model[0].BaseURL = "https://10.0.0.1/"
	if _, err := sandbox.EgressRulesFor(limited(), plan, own); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a credential bound to a denied address: %v", err)
	}
}

func FuzzNetworkPolicy(f *testing.F) {
	for _, s := range []string{"example.com", "*.a.b", "10.0.0.0/8", "::ffff:1.2.3.4", "169.254.169.254", "0x7f.1", "xn--a.com", "a.com."} {
		f.Add(s, "a.com")
	}
	own := netip.MustParsePrefix("10.0.0.0/8")
	f.Fuzz(func(t *testing.T, host, to string) {
		p, err := limited(host).Normalize(own)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || len(err.Error()) > 500 {
				t.Errorf("%q: %v", host, err)
			}
			return
		}
		again, err := p.Normalize(own)
		if err != nil || !slices.Equal(p.AllowedHosts, again.AllowedHosts) {
			t.Fatalf("%q: the normal form %v isn't one: %v %v", host, p.AllowedHosts, again.AllowedHosts, err)
		}
		r, err := sandbox.EgressRulesFor(p, sandbox.VaultPlan{}, own)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Missing(p.AllowedHosts)) != 0 {
			t.Errorf("%q is missing although it is there", host)
		}
		for _, denied := range []string{"169.254.169.254", "::ffff:169.254.0.1", "64:ff9b::a9fe:1", "2002:a9fe:1::", "10.9.9.9", "::ffff:10.0.0.1"} {
			if r.Allows(denied) {
				t.Errorf("%q lets %s pass", host, denied)
			}
		}
		if r.Allows(to) {
			// What passes is a destination, and the only rule covers it.
			d, err := sandbox.ParseDestination(to)
			own, err2 := sandbox.ParseDestination(host)
			if err != nil || err2 != nil || !own.Matches(d.String()) {
				t.Errorf("%q lets %q pass", host, to)
			}
		}
	})
}
