package sandbox

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// NetworkMode says what a sandbox may reach.
type NetworkMode string

// The modes.
const (
	NetworkLimited      NetworkMode = "limited"
	NetworkUnrestricted NetworkMode = "unrestricted"
)

// MaxAllowedHosts bounds the hosts of one policy.
const MaxAllowedHosts = 1000

// NetworkPolicy says what is reachable from a sandbox, and nothing else:
// credentials never live in it, and neither may widen or narrow the other. The
// zero value is limited with no hosts: nothing is reachable.
type NetworkPolicy struct {
	Mode NetworkMode `json:"mode,omitempty"` // empty: limited
	// AllowedHosts are the destinations of a limited policy: an exact host, a
	// leftmost wildcard (*.example.com: any depth, not example.com itself), an
	// IP address or a CIDR. No scheme, port or path.
	AllowedHosts []string `json:"allowed_hosts,omitempty"`
}

// MetadataRange is where clouds serve their machines' credentials. It is denied
// in every mode, before any allow.
var MetadataRange = netip.MustParsePrefix("169.254.0.0/16")

// Normalize checks a policy and gives its normal form: the mode is written
// out, hosts are in lower case without a trailing dot, CIDRs have no bits below
// their length, each host is there once, in the order of the first. denied are
// the backend's own denied ranges. The error (SANDBOX_CONFIG_INVALID) names the
// host: a literal that overlaps a denied range is refused and not narrowed,
// since a security control is either enforced or refused.
func (p NetworkPolicy) Normalize(denied ...netip.Prefix) (NetworkPolicy, error) {
	bad := func(format string, args ...any) (NetworkPolicy, error) {
		return NetworkPolicy{}, Errorf(CodeInvalid, "NetworkPolicy: "+format, args...)
	}
	switch p.Mode {
	case "", NetworkLimited:
		p.Mode = NetworkLimited
	case NetworkUnrestricted:
		if len(p.AllowedHosts) > 0 {
			return bad("an unrestricted network takes no allowed hosts; leave them out, or choose limited")
		}
		return NetworkPolicy{Mode: NetworkUnrestricted}, nil
	default:
		return bad("%q is no mode; there are limited and unrestricted", string(p.Mode))
	}
	if len(p.AllowedHosts) > MaxAllowedHosts {
		return bad("%d allowed hosts are more than %d", len(p.AllowedHosts), MaxAllowedHosts)
	}
	hosts := make([]string, 0, len(p.AllowedHosts))
	seen := make(map[string]bool, len(p.AllowedHosts))
	for _, text := range p.AllowedHosts {
		h, err := ParseDestination(text)
		if err != nil {
			return bad("%v", err)
		}
		if r, ok := h.overlaps(denied); ok {
			return bad("%q overlaps %s, which no sandbox may reach", text, r)
		}
		if s := h.String(); !seen[s] {
			seen[s] = true
			hosts = append(hosts, s)
		}
	}
	p.AllowedHosts = nil
	if len(hosts) > 0 {
		p.AllowedHosts = hosts
	}
	return p, nil
}

// Destination is one host of a policy or a credential. The zero value matches nothing.
type Destination struct {
	name   string // exact, or the suffix of a wildcard
	wild   bool
	prefix netip.Prefix // an IP is a prefix of full length
}

// ParseDestination reads an exact host, a leftmost wildcard, an IP or a CIDR.
func ParseDestination(text string) (Destination, error) {
	refuse := func(why string) (Destination, error) {
		return Destination{}, fmt.Errorf("%q %s", shorten(text, 80), why)
	}
	// Letters outside ASCII could turn into others when lower-cased.
	for _, r := range text {
		if r >= 0x80 {
			return refuse("has letters outside ASCII; write the name in its xn-- form")
		}
	}
	s := strings.ToLower(text)
	switch {
	case s == "":
		return refuse("is empty")
	case strings.Contains(s, "://"):
		return refuse("has a scheme; give the host alone")
	case strings.ContainsAny(s, "%[]@?#"), strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return refuse("is not a host, a wildcard, an IP or a CIDR")
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return Destination{prefix: netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())}, nil
	}
	if strings.ContainsRune(s, '/') {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return refuse("is no CIDR, and a host has no path")
		}
		return Destination{prefix: unmapPrefix(p).Masked()}, nil
	}
	if strings.ContainsRune(s, ':') {
		return refuse("has a port; give the host alone")
	}
	name, wild := strings.CutPrefix(s, "*.")
	name = strings.TrimSuffix(name, ".")
	if why := badName(name); why != "" {
		return refuse(why)
	}
	return Destination{name: name, wild: wild}, nil
}

// badName says why a name in lower case is no host name; empty: it is one.
func badName(name string) string {
	if len(name) > 253 {
		return "is longer than 253 characters"
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "has an empty label"
		case len(label) > 63:
			return "has a label of more than 63 characters"
		case label[0] == '-' || label[len(label)-1] == '-':
			return "has a label that begins or ends with a hyphen"
		case strings.Contains(label, "*"):
			return "has a wildcard elsewhere than in front (*.example.com)"
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return fmt.Sprintf("has the character %q, which no host name has", c)
			}
		}
		last = label
	}
	// 127.1, 2130706433 and 0x7f.1 are names by their letters and addresses to
	// the resolvers of many programs.
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
		return "ends in a number: write an IP address in its usual form"
	}
	return ""
}

func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// String gives the normal form.
func (h Destination) String() string {
	switch {
	case h.prefix.IsValid() && h.prefix.IsSingleIP():
		return h.prefix.Addr().String()
	case h.prefix.IsValid():
		return h.prefix.String()
	case h.wild:
		return "*." + h.name
	}
	return h.name
}

// IsLiteral reports whether h is an IP or a CIDR.
func (h Destination) IsLiteral() bool { return h.prefix.IsValid() }

// Matches reports whether h covers a destination: a name, or an IP address in
// its text form. A name is never looked up.
func (h Destination) Matches(destination string) bool {
	d, err := ParseDestination(destination)
	switch {
	case err != nil || d.wild || d.name == "" && !d.prefix.IsSingleIP():
		return false
	case h.prefix.IsValid():
		return d.prefix.IsValid() && h.prefix.Contains(d.prefix.Addr())
	case h.wild:
		return strings.HasSuffix(d.name, "."+h.name)
	}
	return h.name != "" && h.name == d.name
}

// overlaps reports a denied range that a literal overlaps, in any of the ways
// that an IPv4 address is written inside an IPv6 one.
func (h Destination) overlaps(denied []netip.Prefix) (netip.Prefix, bool) {
	if !h.prefix.IsValid() {
		return netip.Prefix{}, false
	}
	for _, d := range AlwaysDenied(denied...) {
		for _, form := range forms(d) {
			if form.Overlaps(h.prefix) {
				return d, true
			}
		}
	}
	return netip.Prefix{}, false
}

// forms gives a range and the IPv6 ranges that reach the same IPv4 addresses:
// mapped, compatible, NAT64 and 6to4.
func forms(d netip.Prefix) []netip.Prefix {
	if !d.Addr().Is4() {
		return []netip.Prefix{d}
	}
	out := []netip.Prefix{d}
	v4 := d.Addr().As4()
	embed := func(at int, bits int, head ...byte) {
		var b [16]byte
		copy(b[:], head)
		copy(b[at:], v4[:])
		out = append(out, netip.PrefixFrom(netip.AddrFrom16(b), bits))
	}
	embed(12, 96+d.Bits(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff)
	embed(12, 96+d.Bits())
	embed(12, 96+d.Bits(), 0, 0x64, 0xff, 0x9b)
	embed(2, 16+d.Bits(), 0x20, 0x02)
	return out
}

// AlwaysDenied gives the ranges that are denied in every mode: MetadataRange,
// then the backend's own, each once and in its normal form.
func AlwaysDenied(own ...netip.Prefix) []netip.Prefix {
	out := []netip.Prefix{MetadataRange}
	for _, p := range own {
		if p = unmapPrefix(p).Masked(); p.IsValid() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// EgressRules are a policy as rules: Deny comes before Allow, and Default is
// for what no rule names.
type EgressRules struct {
	Default EgressAction
	Deny    []netip.Prefix
	Allow   []string // hosts in their normal form; none when Default is allow
}

// EgressRulesFor gives the rules that a sandbox under p needs, so that the
// plan's credentials can be used too: each host that one is bound to is an
// exact allow. denied are the backend's own ranges.
func EgressRulesFor(p NetworkPolicy, plan VaultPlan, denied ...netip.Prefix) (EgressRules, error) {
	p, err := p.Normalize(denied...)
	if err != nil {
		return EgressRules{}, err
	}
	rules := EgressRules{Default: EgressAllow, Deny: AlwaysDenied(denied...)}
	if p.Mode == NetworkUnrestricted {
		return rules, nil
	}
	rules.Default = EgressDeny
	bound, err := plan.Hosts()
	if err != nil {
		return EgressRules{}, err
	}
	if bound, err = (NetworkPolicy{AllowedHosts: bound}).hosts(denied); err != nil {
		return EgressRules{}, err
	}
	rules.Allow = p.AllowedHosts
	for _, h := range bound {
		if !slices.Contains(rules.Allow, h) {
			rules.Allow = append(rules.Allow, h)
		}
	}
	return rules, nil
}

func (p NetworkPolicy) hosts(denied []netip.Prefix) ([]string, error) {
	p, err := p.Normalize(denied...)
	return p.AllowedHosts, err
}

// Missing gives the allows that aren't in live yet, in their order: all that
// AdmitRuntimeEgress has to send. Nothing is missing where allow is the default.
func (r EgressRules) Missing(live []string) []string {
	if r.Default == EgressAllow {
		return nil
	}
	have := map[string]bool{}
	for _, l := range live {
		if h, err := ParseDestination(l); err == nil {
			have[h.String()] = true
		}
	}
	var out []string
	for _, want := range r.Allow {
		if !have[want] {
			out = append(out, want)
		}
	}
	return out
}

// Allows reports whether the rules let a destination pass, given by name or IP
// address. A name that resolves into a denied range is for who resolves it to
// refuse.
func (r EgressRules) Allows(destination string) bool {
	d, err := ParseDestination(destination)
	if err != nil || d.wild || d.prefix.IsValid() && !d.prefix.IsSingleIP() {
		return false
	}
	if d.prefix.IsValid() {
		if _, denied := d.overlaps(r.Deny); denied {
			return false
		}
	}
	if r.Default == EgressAllow {
		return true
	}
	return slices.ContainsFunc(r.Allow, func(a string) bool {
		h, err := ParseDestination(a)
		return err == nil && h.Matches(destination)
	})
}

// shorten cuts a text for a message.
func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
