// Package inventory lists what an installation of AstraBox has on this host, as
// the kernel and the file system show it and never from records: the demo and
// the end-to-end tests compare two lists to prove that nothing was left behind.
// All of it only reads, and is safe for concurrent use.
package inventory

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
)

// Inventory is what of an installation exists on the host: a list of names by
// kind. Two inventories are equal when the installation left nothing behind.
type Inventory map[string][]string

// Place says what belongs to an installation, beside what is in its network
// namespace: other installations on the machine come and go meanwhile.
type Place struct {
	ExeDir       string // where AstraBox's programs lie
	Installation string // what its names on the host carry; empty: it has none yet
}

// Take lists what is there. The calling process is left out.
func (p Place) Take() (Inventory, error) {
	inv := Inventory{}
	for kind, look := range map[string]func() ([]string, error){
		"process":   p.Processes,
		"mount":     p.mounts,
		"link":      links,
		"cgroup":    p.cgroups,
		"nft table": nftTables,
		"port":      ports,
		"directory": p.directories,
	} {
		found, err := look()
		if err != nil {
			return nil, fmt.Errorf("inventory of kind %s: %w", kind, err)
		}
		slices.Sort(found)
		inv[kind] = found
	}
	return inv, nil
}

// Added lists what is in after and not in before, "kind: name" each.
func Added(before, after Inventory) (out []string) {
	for kind, names := range after {
		for _, n := range names {
			if !slices.Contains(before[kind], n) {
				out = append(out, kind+": "+n)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Processes are those of our programs in this network namespace, and those in a
// control group of the installation's sandboxes, "PID name" each.
func (p Place) Processes() (out []string, err error) {
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		network, _ := os.Readlink(filepath.Join(dir, "ns/net"))
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil || ended(dir) {
			continue
		}
		if (filepath.Dir(exe) == p.ExeDir && network == ours) || p.names(string(groups)) {
			out = append(out, fmt.Sprintf("%d %s", pid, bytes.TrimSpace(comm)))
		}
	}
	return out, nil
}

// ended reports whether a process has ended and only waits for its parent, which
// for a sandbox of a killed service is the machine's process 1.
func ended(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// names reports whether a text names the installation.
func (p Place) names(s string) bool {
	return p.Installation != "" && strings.Contains(s, "astrabox") && strings.Contains(s, p.Installation)
}

func (p Place) mounts() (out []string, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) > 4 && p.names(s.Text()) {
			out = append(out, f[4])
		}
	}
	return out, nil
}

// directories are the installation's below /run/astrabox, and its lease of a subnet.
func (p Place) directories() (out []string, err error) {
	found, err := filepath.Glob("/run/astrabox/*")
	if err != nil {
		return nil, err
	}
	for _, path := range found {
		if p.names(path) {
			out = append(out, path)
			continue
		}
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue // another installation's
		}
		b, err := os.ReadFile(path)
		if err == nil && p.names("astrabox "+string(b)) {
			out = append(out, path+" names the installation")
		}
	}
	return out, nil
}

func links() (out []string, err error) {
	all, err := net.Interfaces()
	for _, i := range all {
		out = append(out, i.Name)
	}
	return out, err
}

func (p Place) cgroups() (out []string, err error) {
	for _, pattern := range []string{"/sys/fs/cgroup/astrabox*", "/sys/fs/cgroup/*/astrabox*"} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, top := range tops {
			err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() && p.names(path) {
					out = append(out, path)
				}
				return nil // a group that vanishes meanwhile is no finding
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func nftTables() (out []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := c.ListTables()
	for _, t := range tables {
		out = append(out, t.Name)
	}
	return out, err
}

// ports are the listening TCP ports of this network namespace.
func ports() (out []string, err error) {
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			if os.IsNotExist(err) {
				continue // no IPv6
			}
			return nil, err
		}
		const listening = "0A"
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			f := strings.Fields(s.Text())
			if len(f) > 3 && f[3] == listening {
				_, hex, _ := strings.Cut(f[1], ":")
				n, err := strconv.ParseUint(hex, 16, 16)
				if err != nil {
					return nil, err
				}
				out = append(out, fmt.Sprintf("%d", n))
			}
		}
	}
	return out, nil
}
