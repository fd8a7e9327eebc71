package demo

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

// inventory is what of AstraBox exists on the host: a list of names by kind.
// Two inventories are equal when an installation left nothing behind.
type inventory map[string][]string

// takeInventory looks at the kernel and the file system, never at records.
// exeDir is where AstraBox's programs lie; the calling process is left out.
func takeInventory(exeDir string) (inventory, error) {
	inv := inventory{}
	for kind, look := range map[string]func() ([]string, error){
		"process":   func() ([]string, error) { return processes(exeDir) },
		"mount":     mounts,
		"link":      links,
		"cgroup":    cgroups,
		"nft table": nftTables,
		"port":      ports,
		"directory": func() ([]string, error) { return filepath.Glob("/run/astrabox/*") },
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

// added lists what is in after and not in before, "kind: name" each.
func added(before, after inventory) (out []string) {
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

// processes are those whose program is ours, or whose cgroup is a sandbox's.
func processes(exeDir string) (out []string, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || pid == os.Getppid() {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		groups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		if err != nil {
			continue // it ended meanwhile
		}
		if (exe != "" && filepath.Dir(exe) == exeDir) || bytes.Contains(groups, []byte("/astrabox_")) {
			out = append(out, fmt.Sprintf("%d %s", pid, bytes.TrimSpace(comm)))
		}
	}
	return out, nil
}

func mounts() (out []string, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) > 4 && strings.Contains(s.Text(), "astrabox") {
			out = append(out, f[4])
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

func cgroups() (out []string, err error) {
	for _, pattern := range []string{"/sys/fs/cgroup/astrabox*", "/sys/fs/cgroup/*/astrabox*"} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, top := range tops {
			err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
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
