package network

import (
	"encoding/binary"
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// TableName is the name of the installation's table, of family inet.
func (n *Network) TableName() string { return "astrabox_" + n.cfg.Inst6 }

// applyTable replaces the table in one transaction: there is no moment without rules.
func (n *Network) applyTable() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	n.addTable(c)
	return c.Flush()
}

// addTable puts the new table into c's transaction.
func (n *Network) addTable(c *nftables.Conn) *nftables.Table {
	table := &nftables.Table{Name: n.TableName(), Family: nftables.TableFamilyINet}
	c.AddTable(table) // so that deleting succeeds
	c.DelTable(table)
	c.AddTable(table)

	accept := nftables.ChainPolicyAccept
	chain := func(name string, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: prio, Policy: &accept})
	}
	add := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var exprs []expr.Any
		for _, p := range parts {
			exprs = append(exprs, p...)
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: ch, Exprs: exprs})
	}

	// From sandboxes. Before routing, since a machine that doesn't forward drops
	// silently what we want to refuse.
	from := chain("from_sandbox", nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
	add(from, n.byGroup(expr.MetaKeyIIFGROUP, expr.CmpOpNeq), verdict(expr.VerdictReturn))
	add(from, ipv6(), verdict(expr.VerdictDrop))
	add(from, foreignSource(), verdict(expr.VerdictDrop))
	add(from, established(), verdict(expr.VerdictAccept))
	add(from, protocol(unix.IPPROTO_TCP), reset())
	add(from, refuse())

	// Forwarding: never, in either direction.
	fwd := chain("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter)
	add(fwd, n.byGroup(expr.MetaKeyIIFGROUP, expr.CmpOpEq), refuse())
	add(fwd, n.byGroup(expr.MetaKeyOIFGROUP, expr.CmpOpEq), refuse())

	// From the machine itself to sandboxes.
	to := chain("to_sandbox", nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	add(to, n.byGroup(expr.MetaKeyOIFGROUP, expr.CmpOpNeq), verdict(expr.VerdictReturn))
	add(to, ipv6(), verdict(expr.VerdictDrop))
	add(to, established(), verdict(expr.VerdictAccept))
	add(to, protocol(unix.IPPROTO_TCP), destPort(wire.Port), verdict(expr.VerdictAccept))
	add(to, protocol(unix.IPPROTO_TCP), reset())
	add(to, refuse())
	return table
}

// removeTable removes the table; a missing one is fine.
func (n *Network) removeTable() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.DelTable(&nftables.Table{Name: n.TableName(), Family: nftables.TableFamilyINet})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// CheckTables reports whether this kernel takes tables like ours. It makes and
// removes one in one transaction, so there never is one to be seen.
func CheckTables() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	n := &Network{cfg: Config{Inst6: "probe0"}, group: 1<<31 | 1}
	c.DelTable(n.addTable(c))
	return c.Flush()
}

func (n *Network) byGroup(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, n.group)},
	}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func ipv6() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV6}},
	}
}

// foreignSource matches a source address that isn't reached by the link on
// which the packet came: a sandbox that pretends to be another one.
func foreignSource() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
	}
}

func established() []expr.Any {
	mask := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func protocol(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}},
	}
}

func destPort(p uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, p)},
	}
}

func reset() []expr.Any { return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

// refuse answers "administratively prohibited", which programs report as such.
func refuse() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
}
