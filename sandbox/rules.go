package sandbox

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Rule ties a capability flag to what a provider that declares it must
// implement, and to what follows when it is missing.
type Rule struct {
	Flag     string // the name of the Capabilities field
	Field    string // the field of Bound that carries the operations; empty: there is none
	Needs    string // what must be implemented, for messages and docs
	Doc      string // what the flag gives, in a sentence
	Without  string // what can't be done without it, in a sentence for people
	Code     Code   // of the refusal of an operation that needs it
	Requires string // another flag that must be declared too; empty: none

	get func(Capabilities) bool
	set func(*Capabilities, bool)
	// bind resolves the operations; false: not implemented. Nil for a flag whose
	// operations are on the handle.
	bind func(Provider, *Bound) bool
}

// Declared reports the flag in c.
func (r Rule) Declared(c Capabilities) bool { return r.get(c) }

// Implemented reports whether p has what the rule needs. For a flag whose
// operations are on the handle it is true: Create and Connect check those.
func (r Rule) Implemented(p Provider) bool {
	return r.bind == nil || !isNil(p) && r.bind(p, new(Bound))
}

// Refusal is the error of an operation that needs the flag on a backend that
// doesn't have it: 501, naming the backend.
func (r Rule) Refusal(backend string) *Error {
	return Errorf(r.Code, "The backend %s doesn't have the capability %s. %s", backend, r.Flag, r.Without)
}

// Rules is the table of capabilities: the single source for registration,
// conformance, what people are told, and the docs.
func Rules() []Rule { return slices.Clone(rules) }

// RuleOf gives the rule of a flag.
func RuleOf(flag string) (Rule, bool) {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Flag == flag })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// Missing is the refusal of the flag by name; an unknown flag is a fault of the
// caller and says so.
func Missing(flag, backend string) *Error {
	r, ok := RuleOf(flag)
	if !ok {
		return Errorf(CodeUnsupported, "The backend %s doesn't have %s.", backend, flag)
	}
	return r.Refusal(backend)
}

var rules = []Rule{
	{
		Flag: "CreateNetworkPolicy", Field: "Network", Code: CodeNetworkUnsupported,
		Needs:   "AdmitRuntimeEgress (sandbox.NetworkAdmitter); every create honours its NetworkPolicy",
		Doc:     "Sandboxes are made under an Environment's network rules.",
		Without: "Nothing can hold its sandboxes to network rules, so no Environment can be saved on it.",
		get:     func(c Capabilities) bool { return c.CreateNetworkPolicy },
		set:     func(c *Capabilities, v bool) { c.CreateNetworkPolicy = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Network, ok = p.(NetworkAdmitter); return ok },
	},
	{
		Flag: "IsolatedSessions", Field: "Isolated", Code: CodeIsolationUnsupported,
		Needs:   "ReadIsolationCapability, PrepareIsolatedWorkspace, Open-, Connect-, RunIn-, StreamIn- and CloseIsolatedSession and CountActiveIsolatedSessions (sandbox.IsolatedSessions)",
		Doc:     "Conversations can share a sandbox, each in a session of its own.",
		Without: "Conversations can't share a sandbox on it.",
		get:     func(c Capabilities) bool { return c.IsolatedSessions },
		set:     func(c *Capabilities, v bool) { c.IsolatedSessions = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Isolated, ok = p.(IsolatedSessions); return ok },
	},
	{
		Flag: "IsolatedSessionRecovery", Field: "Recovery", Code: CodeIsolationUnsupported, Requires: "IsolatedSessions",
		Needs:   "FindIsolatedSessionsByWorkspace (sandbox.IsolatedSessionRecovery)",
		Doc:     "An isolated session whose id was lost is found by its workspace.",
		Without: "An isolated session whose id was lost stays until its sandbox ends.",
		get:     func(c Capabilities) bool { return c.IsolatedSessionRecovery },
		set:     func(c *Capabilities, v bool) { c.IsolatedSessionRecovery = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Recovery, ok = p.(IsolatedSessionRecovery); return ok },
	},
	{
		Flag: "Pause", Field: "Pauser", Code: CodePauseUnsupported,
		Needs:   "Pause and Resume (sandbox.Pauser)",
		Doc:     "A sandbox can be paused and resumed under the same id; its files stay.",
		Without: "Its sandboxes can't be paused when they are idle; choose to terminate them.",
		get:     func(c Capabilities) bool { return c.Pause },
		set:     func(c *Capabilities, v bool) { c.Pause = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Pauser, ok = p.(Pauser); return ok },
	},
	{
		Flag: "ClientPool", Field: "Pool", Code: CodePoolUnsupported,
		Needs:   "EnsureClientPool, AcquireFromClientPool, AdoptSandbox, DescribeClientPool, RetireClientPool, OwnsUnclaimedSandbox and ClientPoolReadiness (sandbox.ClientPool)",
		Doc:     "Sandboxes can be prepared before a conversation needs them.",
		Without: "No sandboxes can be prepared ahead; every conversation starts cold.",
		get:     func(c Capabilities) bool { return c.ClientPool },
		set:     func(c *Capabilities, v bool) { c.ClientPool = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Pool, ok = p.(ClientPool); return ok },
	},
	{
		Flag: "CorrelatedCreate", Field: "Finder", Code: CodeCorrelatedUnsupported,
		Needs:   "FindSandboxByAssignment (sandbox.AssignmentFinder)",
		Doc:     "A create that a restart interrupted can be found and continued.",
		Without: "A start that a restart interrupted has to be started again.",
		get:     func(c Capabilities) bool { return c.CorrelatedCreate },
		set:     func(c *Capabilities, v bool) { c.CorrelatedCreate = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Finder, ok = p.(AssignmentFinder); return ok },
	},
	{
		Flag: "EgressCredentialInjection", Field: "Vault", Code: CodeInjectionUnsupported,
		Needs:   "ApplyCredentialVault (sandbox.CredentialInjector)",
		Doc:     "Credentials stay outside the sandbox and are put into requests that leave it.",
		Without: "Credentials can't be kept outside its sandboxes.",
		get:     func(c Capabilities) bool { return c.EgressCredentialInjection },
		set:     func(c *Capabilities, v bool) { c.EgressCredentialInjection = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Vault, ok = p.(CredentialInjector); return ok },
	},
	{
		Flag: "InventoryListing", Field: "Inventory", Code: CodeListingUnsupported,
		Needs:   "ListSandboxes and DescribeSandbox (sandbox.Inventory)",
		Doc:     "The backend's sandboxes can be listed by their metadata.",
		Without: "Its sandboxes can't be listed; one that nobody names ends with its lease.",
		get:     func(c Capabilities) bool { return c.InventoryListing },
		set:     func(c *Capabilities, v bool) { c.InventoryListing = v },
		bind:    func(p Provider, b *Bound) (ok bool) { b.Inventory, ok = p.(Inventory); return ok },
	},
	{
		Flag: "ProcessSessions", Code: CodeProcessUnsupported,
		Needs:   "the handle's Processes (checked at Create and Connect)",
		Doc:     "Long-lived processes with replay: terminals and Agent programs.",
		Without: "Agent programs that run as a process, and terminals, need sandboxes that are shared.",
		get:     func(c Capabilities) bool { return c.ProcessSessions },
		set:     func(c *Capabilities, v bool) { c.ProcessSessions = v },
	},
}

// Optional is an operation beside the capabilities: no flag declares it, the
// provider has it or not.
type Optional struct {
	Field string // of Bound
	Needs string // the method and the interface
	Doc   string // what it gives, in a sentence
	// Fixed: it can't be masked, since the platform would lose more than a comfort.
	Fixed bool

	bind func(Provider, *Bound) bool
}

// Implemented reports whether p has it.
func (o Optional) Implemented(p Provider) bool { return !isNil(p) && o.bind(p, new(Bound)) }

// Optionals is the table of the operations without a flag.
func Optionals() []Optional { return slices.Clone(optionals) }

var optionals = []Optional{
	{
		Field: "Validator", Needs: "ValidateEnvironment (sandbox.EnvironmentValidator)", Fixed: true,
		Doc:  "An Environment that this backend knows can't work is refused when it is saved.",
		bind: func(p Provider, b *Bound) (ok bool) { b.Validator, ok = p.(EnvironmentValidator); return ok },
	},
	{
		Field: "Diagnoser", Needs: "ReadDiagnostics (sandbox.Diagnoser)",
		Doc:  "The backend tells in text how a sandbox is.",
		bind: func(p Provider, b *Bound) (ok bool) { b.Diagnoser, ok = p.(Diagnoser); return ok },
	},
	{
		Field: "Posture", Needs: "ReadSecurityPosture (sandbox.SecurityPosture)",
		Doc:  "A sandbox tells what contains it.",
		bind: func(p Provider, b *Bound) (ok bool) { b.Posture, ok = p.(SecurityPosture); return ok },
	},
	{
		Field: "Metrics", Needs: "ReadMetrics (sandbox.Metrics)",
		Doc:  "The use of CPU, memory and disk of one sandbox.",
		bind: func(p Provider, b *Bound) (ok bool) { b.Metrics, ok = p.(Metrics); return ok },
	},
	{
		Field: "Memory", Needs: "ReadMemoryHeadroom (sandbox.MemoryReader)",
		Doc:  "How much memory is left below a sandbox's limit, without a command in it.",
		bind: func(p Provider, b *Bound) (ok bool) { b.Memory, ok = p.(MemoryReader); return ok },
	},
	{
		Field: "Ports", Needs: "ListListeningPorts (sandbox.PortLister)",
		Doc:  "The ports on which something listens, without a command in the sandbox.",
		bind: func(p Provider, b *Bound) (ok bool) { b.Ports, ok = p.(PortLister); return ok },
	},
	{
		Field: "Closer", Needs: "Close (io.Closer)", Fixed: true,
		Doc:  "The provider's own resources are let go of when AstraBox stops.",
		bind: func(p Provider, b *Bound) (ok bool) { b.Closer, ok = p.(io.Closer); return ok },
	},
}

// Maskable gives the names that Bind takes as a mask: the flags, and the
// fields of the optional operations that can be left out.
func Maskable() []string {
	var names []string
	for _, r := range rules {
		names = append(names, r.Flag)
	}
	for _, o := range optionals {
		if !o.Fixed {
			names = append(names, o.Field)
		}
	}
	return names
}

// ParseMask reads names of [Maskable] that commas separate, in any case; blank
// ones are left out. An unknown one is refused, with what there is.
func ParseMask(list string) (names []string, err error) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		i := slices.IndexFunc(Maskable(), func(m string) bool { return strings.EqualFold(m, name) })
		if i < 0 {
			return nil, Errorf(CodeInvalid, "%q is nothing that can be disabled; there are: %s", shorten(name, 80), strings.Join(Maskable(), ", "))
		}
		names = append(names, Maskable()[i])
	}
	return names, nil
}

// wrong names what the capabilities contradict in themselves.
func (c Capabilities) wrong() (wrong []string) {
	for _, r := range rules {
		if r.Requires == "" || !r.get(c) {
			continue
		}
		if needed, ok := RuleOf(r.Requires); ok && !needed.get(c) {
			wrong = append(wrong, fmt.Sprintf("it declares %s without %s", r.Flag, r.Requires))
		}
	}
	return append(wrong, wrongLevels(c.PermissionLevels)...)
}

// isNil reports nil, also of a nil pointer (map, slice, func, channel) in an interface.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	default:
		return false
	}
}
