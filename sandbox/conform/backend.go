package conform

import (
	"github.com/astrabox/astrabox/sandbox"
)

// backend is a provider as it is: a Bound would guard its operations, and hide
// from the clauses what they look for. An optional interface is resolved when
// its flag is declared; nil is one that isn't there.
type backend struct {
	sandbox.Provider
	Caps      sandbox.Capabilities
	Pauser    sandbox.Pauser
	Finder    sandbox.AssignmentFinder
	Inventory sandbox.Inventory
	Isolated  sandbox.IsolatedSessions
	Recovery  sandbox.IsolatedSessionRecovery
}

func backendOf(p sandbox.Provider, caps sandbox.Capabilities) backend {
	r := sandbox.Resolve(p, caps)
	return backend{Provider: p, Caps: caps, Pauser: r.Pauser, Finder: r.Finder, Inventory: r.Inventory, Isolated: r.Isolated, Recovery: r.Recovery}
}

// has reports whether the operations of a flag can be called.
func (b backend) has(flag string) bool {
	switch flag {
	case "":
		return true
	case "Pause":
		return b.Pauser != nil
	case "CorrelatedCreate":
		return b.Finder != nil
	case "InventoryListing":
		return b.Inventory != nil
	case "IsolatedSessions":
		return b.Isolated != nil
	case "IsolatedSessionRecovery":
		return b.Recovery != nil
	}
	return false
}
