package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Subnets of all installations of a machine come from pool, each of 4,094
// addresses.
var pool = netip.MustParsePrefix("10.208.0.0/12")

const subnetBits = 20

// leased is one line of the machine's lease file.
type leased struct {
	Subnet netip.Prefix `json:"subnet"`
	RunDir string       `json:"run_dir"`
}

// withLeases runs f on the machine's leases under the machine's lock and
// stores what f changed.
func withLeases(dir string, f func(map[string]leased) error) error {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("address leases: %w", err)
	}
	defer lock.Close()
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock address leases: %w", err)
		}
	}
	file := filepath.Join(dir, "subnets.json")
	m := map[string]leased{}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("address leases: %w", err)
	}
	// A torn file is impossible (it is renamed into place), so an unreadable one
	// is somebody's doing and better looked at than overwritten.
	if len(b) > 0 {
		if err := json.Unmarshal(b, &m); err != nil {
			return fmt.Errorf("address leases: %s: %w", file, err)
		}
	}
	if err := f(m); err != nil {
		return err
	}
	if len(m) == 0 {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("address leases: %w", err)
		}
		return nil
	}
	if b, err = json.MarshalIndent(m, "", "  "); err != nil {
		return err
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("address leases: %w", err)
	}
	return os.Rename(tmp, file)
}

func lease(cfg Config) (subnet netip.Prefix, err error) {
	err = withLeases(cfg.LeaseDir, func(m map[string]leased) error {
		for inst, l := range m {
			if _, err := os.Stat(l.RunDir); errors.Is(err, fs.ErrNotExist) && inst != cfg.Inst6 {
				delete(m, inst)
			}
		}
		if l, ok := m[cfg.Inst6]; ok {
			subnet = l.Subnet
			m[cfg.Inst6] = leased{subnet, cfg.RunDir}
			return nil
		}
		taken, err := routed()
		if err != nil {
			return err
		}
		for _, l := range m {
			taken = append(taken, l.Subnet)
		}
		for p := netip.PrefixFrom(pool.Addr(), subnetBits); pool.Contains(p.Addr()); p = nextSubnet(p) {
			if !overlaps(p, taken) {
				subnet = p
				m[cfg.Inst6] = leased{p, cfg.RunDir}
				return nil
			}
		}
		return fmt.Errorf("every subnet of %s is leased or routed elsewhere", pool)
	})
	return subnet, err
}

func unlease(cfg Config) error {
	return withLeases(cfg.LeaseDir, func(m map[string]leased) error {
		delete(m, cfg.Inst6)
		return nil
	})
}

// routed lists what this machine reaches already, default routes apart.
func routed() ([]netip.Prefix, error) {
	rs, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var ps []netip.Prefix
	for _, r := range rs {
		if r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 0 {
			ps = append(ps, netip.PrefixFrom(a, bits))
		}
	}
	return ps, nil
}

func overlaps(p netip.Prefix, others []netip.Prefix) bool {
	return slices.ContainsFunc(others, p.Overlaps)
}

func nextSubnet(p netip.Prefix) netip.Prefix {
	a := p.Addr().As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v += 1 << (32 - subnetBits)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), subnetBits)
}
