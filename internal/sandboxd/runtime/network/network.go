// Package network answers "how does this machine reach a sandbox, and how does
// a sandbox reach nothing": a routed veth pair per sandbox, addresses from a
// subnet that is leased for the installation, and one nftables table.
//
// The runtime in package oci calls it. A [Network] works in the network
// namespace in which it was opened and is safe for concurrent use; calls with
// the same link must not overlap. Errors name links and addresses only.
//
// # What passes
//
// A sandbox has one route, to the machine's end of its own link, and no way
// further. From the machine to a sandbox only TCP to execd's port passes; from
// a sandbox only answers to that. Everything else that comes from or goes to
// our links is refused at once rather than dropped, since a drop makes
// programs wait. IPv6 is off on both ends.
//
// Our links are told by their device group, a number derived from the
// installation that a link has from the moment it exists. So no element of a
// set has to be kept in step with links, there is no instant at which a link
// is without rules, and other traffic of the machine is never matched: the
// chains' policy is accept.
package network

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrExhausted says that the subnet has no free address left.
var ErrExhausted = errors.New("no free address")

// Config says whose network it is.
type Config struct {
	// Inst6 names the installation: six characters of [a-z0-9].
	Inst6 string
	// RunDir exists as long as the installation has anything on the machine; a
	// lease whose RunDir is gone is free for others.
	RunDir string
	// LeaseDir is shared by all installations of the machine.
	LeaseDir string
}

// Network is one installation's.
type Network struct {
	cfg    Config
	subnet netip.Prefix
	group  uint32

	mu   sync.Mutex
	used map[netip.Addr]bool
	last netip.Addr
}

// Link is one sandbox's connection.
type Link struct {
	// Name is that of the machine's end, at most 15 characters. It is never used twice.
	Name string
	// Addr is the sandbox's address.
	Addr netip.Addr
}

var inst6 = regexp.MustCompile(`^[a-z0-9]{6}$`)

// Open leases a subnet, or finds the one leased before, and puts the table in place.
func Open(cfg Config) (*Network, error) {
	if !inst6.MatchString(cfg.Inst6) {
		return nil, fmt.Errorf("network: installation %q is not six characters of [a-z0-9]", cfg.Inst6)
	}
	subnet, err := lease(cfg)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	sum := sha256.Sum256([]byte("astrabox/" + cfg.Inst6))
	n := &Network{
		cfg:    cfg,
		subnet: subnet,
		// The highest bit keeps out of the way of small numbers that people use.
		group: binary.BigEndian.Uint32(sum[:]) | 1<<31,
		used:  make(map[netip.Addr]bool),
	}
	n.last = n.Gateway()
	if err := n.applyTable(); err != nil {
		return nil, fmt.Errorf("network: nftables: %w", err)
	}
	return n, nil
}

// Gateway is the machine's address on every link.
func (n *Network) Gateway() netip.Addr { return n.subnet.Addr().Next() }

// Subnet is what was leased.
func (n *Network) Subnet() netip.Prefix { return n.subnet }

// Reserve takes a free address and invents a name. Addresses go round: one that
// was just freed comes last, since the kernel takes links away in its own time.
func (n *Network) Reserve() (Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.last
	for range 1 << (32 - subnetBits) {
		a = a.Next()
		if !n.subnet.Contains(a.Next()) { // the last address of the subnet is its broadcast address
			a = n.Gateway().Next()
		}
		if !n.used[a] {
			n.used[a], n.last = true, a
			return Link{Name: n.linkName(), Addr: a}, nil
		}
	}
	return Link{}, ErrExhausted
}

// Keep marks the address of a sandbox that an earlier instance started.
func (n *Network) Keep(l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.used[l.Addr] = true
	if n.subnet.Contains(l.Addr) && n.last.Less(l.Addr) {
		n.last = l.Addr
	}
}

// Free gives the address back.
func (n *Network) Free(l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.used, l.Addr)
}

func (n *Network) linkPrefix() string { return "ab" + n.cfg.Inst6[:4] }

func (n *Network) linkName() string {
	return n.linkPrefix() + strings.ToLower(rand.Text()[:8])
}

// Plug makes the link l with its other end, eth0, in the network namespace of
// process pid, and configures both ends. A failure leaves what Unplug removes.
func (n *Network) Plug(pid int, l Link) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	defer ns.Close()
	if err := n.plug(int(ns.Fd()), l); err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	return nil
}

func (n *Network) plug(ns int, l Link) error {
	ip := l.Addr.As4()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.Name
	attrs.Group = n.group
	attrs.HardwareAddr = net.HardwareAddr{0x02, 0xab, ip[0], ip[1], ip[2], ip[3]}
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         "eth0",
		PeerNamespace:    netlink.NsFd(ns),
		PeerHardwareAddr: net.HardwareAddr{0x06, 0xab, ip[0], ip[1], ip[2], ip[3]},
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	host, box, gw := veth.Attrs().Index, single(l.Addr), single(n.Gateway())

	// The table drops IPv6 anyway; this keeps the kernel from even trying. A
	// kernel without IPv6 has no such file.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Name+"/disable_ipv6", []byte("1"), 0)
	if err := netlink.AddrAdd(veth, &netlink.Addr{IPNet: gw}); err != nil {
		return fmt.Errorf("address: %w", err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	// Neighbours are permanent: an ARP request lost while a link comes up would
	// cost a second.
	if err := netlink.NeighSet(neighbour(host, l.Addr, veth.PeerHardwareAddr)); err != nil {
		return fmt.Errorf("neighbour: %w", err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: host, Dst: box, Src: gw.IP, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("route: %w", err)
	}

	in, err := netlink.NewHandleAt(netns.NsHandle(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("sandbox's namespace: %w", err)
	}
	defer in.Close()
	eth, err := in.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("eth0: %w", err)
	}
	idx := eth.Attrs().Index
	if err := in.AddrAdd(eth, &netlink.Addr{IPNet: box}); err != nil {
		return fmt.Errorf("eth0: address: %w", err)
	}
	if err := in.LinkSetUp(eth); err != nil {
		return fmt.Errorf("eth0: up: %w", err)
	}
	if err := in.NeighSet(neighbour(idx, n.Gateway(), attrs.HardwareAddr)); err != nil {
		return fmt.Errorf("eth0: neighbour: %w", err)
	}
	if err := in.RouteAdd(&netlink.Route{LinkIndex: idx, Dst: gw, Src: box.IP, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("eth0: route: %w", err)
	}

	machine := &netlink.Handle{} // of the namespace that we are in
	if err := running(machine, host); err != nil {
		return err
	}
	if err := running(in, idx); err != nil {
		return fmt.Errorf("eth0: %w", err)
	}
	return nil
}

// runningTime is far more than the kernel takes, which is less than a
// millisecond on an idle machine.
const runningTime = 5 * time.Second

// running waits until the link sends what it is given. The kernel turns a
// link's queue on only some time after its other end came up, and drops all
// packets until then: a connection that is opened meanwhile loses its first
// packet, and that costs a second.
func running(h *netlink.Handle, index int) error {
	const first, longest = 50 * time.Microsecond, 5 * time.Millisecond
	deadline := time.Now().Add(runningTime)
	for pause := first; ; pause = min(2*pause, longest) {
		l, err := h.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("state: %w", err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it is %s after %v", l.Attrs().OperState, runningTime)
		}
		time.Sleep(pause)
	}
}

// Unplug removes a link, with its address, routes and other end, and returns
// when it's gone. A link that doesn't exist, or isn't ours, is left alone.
func (n *Network) Unplug(name string) error {
	l, err := n.find(name)
	if l == nil || err != nil {
		return err
	}
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// Exists reports whether the link is there.
func (n *Network) Exists(name string) (bool, error) {
	l, err := n.find(name)
	return l != nil, err
}

func (n *Network) find(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up link %s: %w", name, err)
	}
	if l.Attrs().Group != n.group {
		return nil, nil
	}
	return l, nil
}

// Links lists the names of all links of this installation.
func (n *Network) Links() ([]string, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var names []string
	for _, l := range all {
		if a := l.Attrs(); a.Group == n.group && strings.HasPrefix(a.Name, n.linkPrefix()) {
			names = append(names, a.Name)
		}
	}
	return names, nil
}

// Remove takes the table and the lease away. All links must be gone.
func (n *Network) Remove() error {
	return errors.Join(n.removeTable(), unlease(n.cfg))
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

func neighbour(link int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
}

// Used lists the addresses that are taken.
func (n *Network) Used() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Keys(n.used), netip.Addr.Compare)
}
