package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/astrabox/astrabox/test/machine"
)

const inNamespace = "ASTRABOX_TEST_NETNS"

// TestMain runs the tests in a network namespace of their own.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inNamespace) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	goruntime.LockOSThread()
	if cmd.Run() != nil {
		os.Exit(1)
	}
}

func open(t *testing.T, dir, inst6 string) *Network {
	t.Helper()
	machine.NeedRoot(t)
	run := filepath.Join(dir, inst6)
	if err := os.MkdirAll(run, 0o755); err != nil {
		t.Fatal(err)
	}
	n, err := Open(Config{Inst6: inst6, RunDir: run, LeaseDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestLeases(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir, "aaaaaa"), open(t, dir, "aaaabb")
	if a.Subnet().Overlaps(b.Subnet()) || !pool.Contains(a.Subnet().Addr()) || a.Subnet().Bits() != subnetBits {
		t.Errorf("subnets %v and %v", a.Subnet(), b.Subnet())
	}
	if again := open(t, dir, "aaaaaa"); again.Subnet() != a.Subnet() {
		t.Errorf("a restart changed %v to %v", a.Subnet(), again.Subnet())
	}
	// A lease whose installation is gone is free.
	if err := os.Remove(filepath.Join(dir, "aaaaaa")); err != nil {
		t.Fatal(err)
	}
	if c := open(t, dir, "cccccc"); c.Subnet() != a.Subnet() {
		t.Errorf("a dead installation's subnet wasn't reused: %v", c.Subnet())
	}
	for _, inst := range []string{"aaaabb", "cccccc"} {
		if err := open(t, dir, inst).Remove(); err != nil {
			t.Error(err)
		}
	}
	if err := a.Remove(); err != nil {
		t.Errorf("removing what isn't leased: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "subnets.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the last lease is still there: %v", err)
	}
	if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("tables left: %s, %v", out, err)
	}
}

func TestLeasesTogether(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[netip.Prefix]string{}
	for i := range 16 {
		inst := fmt.Sprintf("par%03d", i)
		if err := os.Mkdir(filepath.Join(dir, inst), 0o755); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			p, err := lease(Config{Inst6: inst, RunDir: filepath.Join(dir, inst), LeaseDir: dir})
			mu.Lock()
			defer mu.Unlock()
			if other := seen[p]; err != nil || other != "" {
				t.Errorf("%s got %v as %s did, %v", inst, p, other, err)
			}
			seen[p] = inst
		})
	}
	wg.Wait()
}

func TestLeaseAvoidsRoutes(t *testing.T) {
	machine.NeedRoot(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := netlink.ParseAddr("10.208.5.1/14")
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	defer netlink.AddrDel(lo, addr)
	// An address of loopback makes no route to its network, so one is made.
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: addr.IPNet, Scope: netlink.SCOPE_LINK}
	_, route.Dst, _ = net.ParseCIDR("10.208.0.0/14")
	if err := netlink.RouteReplace(route); err != nil {
		t.Fatal(err)
	}
	defer netlink.RouteDel(route)
	n := open(t, t.TempDir(), "routed")
	defer n.Remove()
	if n.Subnet().Overlaps(netip.MustParsePrefix("10.208.0.0/14")) {
		t.Errorf("leased %v, which this machine routes elsewhere", n.Subnet())
	}
}

func TestLeaseFileByHand(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "subnets.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := lease(Config{Inst6: "broken", RunDir: dir, LeaseDir: dir})
	if err == nil || !strings.Contains(err.Error(), "subnets.json") {
		t.Errorf("got %v", err)
	}
}

func TestReserve(t *testing.T) {
	n := &Network{cfg: Config{Inst6: "abcdef"}, subnet: netip.MustParsePrefix("10.208.16.0/20"), used: map[netip.Addr]bool{}}
	n.last = n.Gateway()
	names := map[string]bool{}
	var links []Link
	for {
		l, err := n.Reserve()
		if errors.Is(err, ErrExhausted) {
			break
		}
		if err != nil || names[l.Name] || len(l.Name) > 15 || !strings.HasPrefix(l.Name, "ababcd") || !n.subnet.Contains(l.Addr) || l.Addr == n.Gateway() {
			t.Fatalf("%+v, %v", l, err)
		}
		names[l.Name] = true
		links = append(links, l)
	}
	if len(links) != 1<<12-3 { // network, gateway, broadcast
		t.Errorf("%d addresses", len(links))
	}
	n.Free(links[7])
	if l, err := n.Reserve(); err != nil || l.Addr != links[7].Addr || l.Name == links[7].Name {
		t.Errorf("%+v, %v; freed %+v", l, err, links[7])
	}
	// An address that was just freed isn't the next.
	n.Free(links[10])
	n.Free(links[11])
	l, _ := n.Reserve()
	n.Free(l)
	if again, _ := n.Reserve(); again.Addr == l.Addr {
		t.Errorf("%v was given twice in a row", l.Addr)
	}
}

func TestForeignLinkStays(t *testing.T) {
	n := open(t, t.TempDir(), "foreig")
	defer n.Remove()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.linkPrefix() + "x" // our name, not our group
	d := &netlink.Veth{LinkAttrs: attrs, PeerName: "other"}
	if err := netlink.LinkAdd(d); err != nil {
		t.Fatal(err)
	}
	defer netlink.LinkDel(d)
	if err := n.Unplug(attrs.Name); err != nil {
		t.Error(err)
	}
	if names, err := n.Links(); err != nil || len(names) > 0 {
		t.Errorf("links %v, %v", names, err)
	}
	if _, err := netlink.LinkByName(attrs.Name); err != nil {
		t.Errorf("somebody else's link: %v", err)
	}
}

func TestCheckTablesLeavesNothing(t *testing.T) {
	machine.NeedRoot(t)
	if err := CheckTables(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || strings.Contains(string(out), "probe") {
		t.Errorf("left: %s, %v", out, err)
	}
}
