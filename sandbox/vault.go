package sandbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// VaultPlan is what a sandbox's credential vault should hold. The sandbox sees
// placeholders only; outside it, a request that leaves for a host that the
// credential is meant for gets the real value in the placeholder's place.
// Answers are never changed. A placeholder that is sent where it isn't allowed
// (another host, another scheme, another place in the request) has its request
// refused and not forwarded.
//
// Model, Environment and MCP are one set each; HTTPBasic has one per scope. A
// set that is nil (a scope that isn't named) is left as it is; one that is
// empty but not nil is revoked; any other replaces the set. Mind the
// difference: append(nil) and a JSON null are nil. Placeholders of others that
// use the same vault stay valid.
//
// Secret values are of type [Secret]. A plan that was stored as JSON has none
// and is refused by Validate until they are put back.
type VaultPlan struct {
	Model       []ModelCredential       `json:"model"`
	Environment []EnvironmentCredential `json:"environment"`
	MCP         []MCPCredential         `json:"mcp"`
	HTTPBasic   []BasicCredentials      `json:"http_basic"`
}

// IsZero reports whether the plan leaves everything as it is.
func (p VaultPlan) IsZero() bool {
	return p.Model == nil && p.Environment == nil && p.MCP == nil && len(p.HTTPBasic) == 0
}

// Reach says to which requests a credential may be put. The zero value is none.
type Reach struct {
	// Hosts are exact names or leftmost wildcards, each with or without a port
	// (example.com:8443; without one any port matches). A credential without
	// hosts is never used, unless AnyHost is set.
	Hosts   []string `json:"hosts,omitempty"`
	AnyHost bool     `json:"any_host,omitempty"`
	// InsecureHTTP lets it go over plain HTTP, where anybody on the way reads it.
	InsecureHTTP bool `json:"insecure_http,omitempty"`
	// Methods and Paths narrow further; nil: any. A path is absolute; * stands
	// for characters within one of its parts, and ** at the end for all below.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
}

// ModelCredential is the key of a model's API. The sandbox's requests to
// BaseURL carry a placeholder in Header; several workloads of one sandbox may
// have placeholders of their own for the same credential, or for their own.
type ModelCredential struct {
	Name         string         `json:"name"`
	Value        Secret         `json:"value"`
	Header       string         `json:"header"`
	BaseURL      string         `json:"base_url"` // absolute, https unless InsecureHTTP
	InsecureHTTP bool           `json:"insecure_http,omitempty"`
	Methods      []string       `json:"methods,omitempty"`
	Paths        []string       `json:"paths,omitempty"`
	Substitute   []Substitution `json:"substitute,omitempty"`
}

// Substitution is the placeholder of one workload, and what it stands for.
type Substitution struct {
	Name        string `json:"name"`
	Value       Secret `json:"value"`
	Placeholder string `json:"placeholder"`
}

// EnvironmentCredential is one that the workload uses through a placeholder in
// its environment, in headers or bodies.
type EnvironmentCredential struct {
	ID          string `json:"id"`
	Name        string `json:"name"` // of the variable
	Value       Secret `json:"value"`
	Placeholder string `json:"placeholder"` // see [NewPlaceholder]
	Reach       Reach  `json:"reach"`
	InHeaders   bool   `json:"in_headers,omitempty"`
	InBody      bool   `json:"in_body,omitempty"`
}

// MCPCredential gives the requests to one MCP server their headers.
type MCPCredential struct {
	Name         string            `json:"name"`
	ServerURL    string            `json:"server_url"` // absolute, https unless InsecureHTTP
	InsecureHTTP bool              `json:"insecure_http,omitempty"`
	Headers      map[string]Secret `json:"headers"`
	Methods      []string          `json:"methods,omitempty"` // nil: GET, POST and DELETE
}

// BasicCredentials are the user names and passwords of one scope, for Git and
// other services that speak HTTP Basic.
type BasicCredentials struct {
	Scope       string            `json:"scope"`
	Credentials []BasicCredential `json:"credentials"`
}

// BasicCredential is for requests to URL and what lies below it.
type BasicCredential struct {
	ID       string `json:"id"`
	URL      string `json:"url"` // https
	Username string `json:"username"`
	Password Secret `json:"password"`
}

// Limits of a plan.
const (
	MaxCredentials = 1000
	// MaxSecret is the longest value in bytes. A proxy that streams keeps as
	// much as the longest placeholder while it looks for one.
	MaxSecret      = 64 << 10
	MaxPlaceholder = 512
	minPlaceholder = 16 // shorter ones are met by accident
)

// Validate names the first field that is wrong (SANDBOX_CONFIG_INVALID), and
// never a value.
func (p VaultPlan) Validate() error {
	v := vaultCheck{placeholders: map[string]bool{}}
	v.plan(p)
	if v.err != nil {
		return Errorf(CodeInvalid, "Vault.%v", v.err)
	}
	return nil
}

// vaultCheck keeps the first fault.
type vaultCheck struct {
	err          error
	count        int
	placeholders map[string]bool
}

func (v *vaultCheck) bad(field, format string, args ...any) {
	if v.err == nil {
		v.err = fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...))
	}
}

func (v *vaultCheck) plan(p VaultPlan) {
	names := map[string]bool{}
	for i, c := range p.Model {
		at := fmt.Sprintf("Model[%d]", i)
		v.name(at+".Name", c.Name, names)
		v.secret(at+".Value", c.Value)
		v.header(at+".Header", c.Header)
		v.url(at+".BaseURL", c.BaseURL, c.InsecureHTTP)
		v.narrow(at, c.Methods, c.Paths)
		for j, s := range c.Substitute {
			in := fmt.Sprintf("%s.Substitute[%d]", at, j)
			v.name(in+".Name", s.Name, names)
			v.secret(in+".Value", s.Value)
			v.placeholder(in+".Placeholder", s.Placeholder, s.Value)
		}
	}
	names = map[string]bool{}
	for i, c := range p.Environment {
		at := fmt.Sprintf("Environment[%d]", i)
		v.name(at+".ID", c.ID, names)
		v.secret(at+".Value", c.Value)
		v.placeholder(at+".Placeholder", c.Placeholder, c.Value)
		if !c.InHeaders && !c.InBody {
			v.bad(at, "neither InHeaders nor InBody is set")
		}
		v.reach(at+".Reach", c.Reach)
	}
	names = map[string]bool{}
	for i, c := range p.MCP {
		at := fmt.Sprintf("MCP[%d]", i)
		v.name(at+".Name", c.Name, names)
		v.url(at+".ServerURL", c.ServerURL, c.InsecureHTTP)
		v.narrow(at, c.Methods, nil)
		if len(c.Headers) == 0 {
			v.bad(at+".Headers", "is empty")
		}
		for _, name := range sortedKeys(c.Headers) {
			v.header(at+".Headers", name)
			v.secret(at+".Headers["+shorten(name, 60)+"]", c.Headers[name])
		}
	}
	scopes := map[string]bool{}
	for i, set := range p.HTTPBasic {
		at := fmt.Sprintf("HTTPBasic[%d]", i)
		v.name(at+".Scope", set.Scope, scopes)
		names = map[string]bool{}
		for j, c := range set.Credentials {
			in := fmt.Sprintf("%s.Credentials[%d]", at, j)
			v.name(in+".ID", c.ID, names)
			v.url(in+".URL", c.URL, false)
			v.secret(in+".Password", c.Password)
			if strings.ContainsRune(c.Username, ':') || hasControl(c.Username) {
				v.bad(in+".Username", "holds a colon or a control character")
			}
		}
	}
}

func (v *vaultCheck) name(field, name string, seen map[string]bool) {
	v.count++
	switch {
	case v.count > MaxCredentials:
		v.bad(field, "is one of more than %d credentials", MaxCredentials)
	case strings.TrimSpace(name) == "" || hasControl(name) || len(name) > 253:
		v.bad(field, "must be 1 to 253 characters, without control characters")
	case seen[name]:
		v.bad(field, "is there twice")
	}
	seen[name] = true
}

func (v *vaultCheck) secret(field string, s Secret) {
	switch value := s.Reveal(); {
	case value == "":
		v.bad(field, "is empty; a plan that was stored has to be given its secrets again")
	case len(value) > MaxSecret:
		v.bad(field, "is longer than %d bytes", MaxSecret)
	case strings.ContainsAny(value, "\r\n\x00"):
		v.bad(field, "holds a line break or NUL")
	}
}

func (v *vaultCheck) placeholder(field, text string, value Secret) {
	switch {
	case len(text) < minPlaceholder || len(text) > MaxPlaceholder:
		v.bad(field, "must be %d to %d bytes", minPlaceholder, MaxPlaceholder)
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"'\&<>`, r) }):
		v.bad(field, "holds a character that JSON, URLs or shells write otherwise")
	case strings.Contains(text, value.Reveal()) || strings.Contains(value.Reveal(), text):
		v.bad(field, "holds the value that it stands for, or is held by it")
	case v.placeholders[text]:
		v.bad(field, "is there twice")
	}
	v.placeholders[text] = true
}

// reservedHeaders belong to the connection; a proxy sets or drops them.
var reservedHeaders = []string{"connection", "content-length", "content-type", "expect", "forwarded", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}

func (v *vaultCheck) header(field, name string) {
	lower := strings.ToLower(name)
	switch {
	case !isToken(name):
		v.bad(field, "%q is no header name", shorten(name, 60))
	case slices.Contains(reservedHeaders, lower), strings.HasPrefix(lower, "proxy-"), strings.HasPrefix(lower, "x-forwarded-"):
		v.bad(field, "%s belongs to the connection and can't be set", name)
	}
}

func (v *vaultCheck) url(field, text string, insecure bool) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "":
		v.bad(field, "is no absolute URL")
	case u.Scheme != "https" && (u.Scheme != "http" || !insecure):
		v.bad(field, "must begin with https:// (plain HTTP has to be allowed explicitly)")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		v.bad(field, "must have no user, query or fragment")
	case v.err == nil:
		if _, err := reachHostOf(u); err != nil {
			v.bad(field, "%v", err)
		}
	}
}

func (v *vaultCheck) narrow(at string, methods, paths []string) {
	for _, m := range methods {
		if !isToken(m) {
			v.bad(at+".Methods", "%q is no method", shorten(m, 60))
		}
	}
	for _, p := range paths {
		if err := checkPathPattern(p); err != nil {
			v.bad(at+".Paths", "%v", err)
		}
	}
}

func (v *vaultCheck) reach(at string, r Reach) {
	if r.AnyHost && len(r.Hosts) > 0 {
		v.bad(at+".Hosts", "is set although AnyHost is")
	}
	for _, h := range r.Hosts {
		if _, _, err := parseReachHost(h); err != nil {
			v.bad(at+".Hosts", "%v", err)
		}
	}
	v.narrow(at, r.Methods, r.Paths)
}

// Hosts gives the hosts that the plan's credentials are bound to, in their
// normal form and without ports, each once, in a fixed order: what
// AdmitRuntimeEgress has to allow.
func (p VaultPlan) Hosts() ([]string, error) {
	var out []string
	add := func(h Destination) {
		if s := h.String(); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	var urls []string
	for _, c := range p.Model {
		urls = append(urls, c.BaseURL)
	}
	for _, c := range p.MCP {
		urls = append(urls, c.ServerURL)
	}
	for _, set := range p.HTTPBasic {
		for _, c := range set.Credentials {
			urls = append(urls, c.URL)
		}
	}
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			return nil, Errorf(CodeInvalid, "Vault: a credential's URL can't be read")
		}
		h, err := reachHostOf(u)
		if err != nil {
			return nil, Errorf(CodeInvalid, "Vault: %v", err)
		}
		add(h)
	}
	for _, c := range p.Environment {
		for _, text := range c.Reach.Hosts {
			h, _, err := parseReachHost(text)
			if err != nil {
				return nil, Errorf(CodeInvalid, "Vault: %v", err)
			}
			add(h)
		}
	}
	slices.Sort(out)
	return out, nil
}

func reachHostOf(u *url.URL) (Destination, error) {
	h, err := ParseDestination(u.Hostname())
	if err == nil && (h.wild || h.prefix.IsValid() && !h.prefix.IsSingleIP()) {
		err = fmt.Errorf("%q names no single host", shorten(u.Hostname(), 80))
	}
	return h, err
}

// NewPlaceholder makes the placeholder of a credential:
// ASTRABOX-VAULT-CRED::ID::32 hex digits. The digits are random, or, with a
// scope that is private to one sandbox, the same each time.
func NewPlaceholder(scope, credentialID string) string {
	var nonce [16]byte
	if scope != "" {
		sum := sha256.Sum256([]byte(scope + "\x00" + credentialID))
		copy(nonce[:], sum[:])
	} else {
		_, _ = rand.Read(nonce[:]) // never fails
	}
	return "ASTRABOX-VAULT-CRED::" + credentialID + "::" + hex.EncodeToString(nonce[:])
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// isToken reports whether s is a token of HTTP.
func isToken(s string) bool {
	return s != "" && len(s) <= 253 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
