package sandbox

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
)

// MemoryReader is for a backend that knows better than a command in the
// sandbox. See [MemoryHeadroom].
type MemoryReader interface {
	ReadMemoryHeadroom(ctx context.Context, sandboxID string) (Headroom, error)
}

// PortLister is for a backend that knows better than a command in the sandbox.
type PortLister interface {
	// ListListeningPorts gives the TCP ports on which something listens, in order.
	ListListeningPorts(ctx context.Context, sandboxID string) ([]int, error)
}

// Headroom is the memory of a sandbox in bytes. The zero value, and anything
// but Proven, means that no room is proven: then nothing more is put into it.
type Headroom struct{ Limit, Used int64 }

// Proven reports whether limit and use are known.
func (h Headroom) Proven() bool { return h.Limit > 0 && h.Used >= 0 }

// Free is what is left; 0 when that isn't known.
func (h Headroom) Free() int64 {
	if !h.Proven() || h.Used >= h.Limit {
		return 0
	}
	return h.Limit - h.Used
}

// The files of both versions of cgroups.
var memoryFiles = [][2]string{
	{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
	{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
}

// MemoryHeadroom reads a sandbox's memory through its Commands. A limit that
// there isn't, or that can't be read, is no headroom and no error; an error
// means that the sandbox couldn't be asked.
func MemoryHeadroom(ctx context.Context, c Commands) (Headroom, error) {
	for _, files := range memoryFiles {
		limit, ok, err := readNumber(ctx, c, files[0])
		if err != nil {
			return Headroom{}, err
		}
		if !ok {
			continue
		}
		used, ok, err := readNumber(ctx, c, files[1])
		if err != nil || !ok {
			return Headroom{}, err
		}
		return Headroom{Limit: limit, Used: used}, nil
	}
	return Headroom{}, nil
}

// unlimited is above what version 1 writes for "no limit": the largest number
// of whole pages.
const unlimited = math.MaxInt64 / 2

func readNumber(ctx context.Context, c Commands, file string) (n int64, ok bool, err error) {
	r, err := c.Run(ctx, Command{Line: "cat " + file})
	if err != nil {
		return 0, false, err
	}
	if r.ExitCode != 0 {
		return 0, false, nil
	}
	n, notNumber := strconv.ParseInt(strings.TrimSpace(string(r.Stdout)), 10, 64)
	return n, notNumber == nil && n >= 0 && n < unlimited, nil
}

// ListeningPorts reads through Commands on which TCP ports of a sandbox
// something listens, in order, reserved ones left out. own are the backend's
// reserved ports beside ExecdPort. A table that can't be read is an error: it
// never reads as "nothing listens".
func ListeningPorts(ctx context.Context, c Commands, own ...int) ([]int, error) {
	seen := map[int]bool{}
	read := false
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		r, err := c.Run(ctx, Command{Line: "cat " + file})
		if err != nil {
			return nil, err
		}
		if r.ExitCode != 0 {
			continue // a kernel without IPv6
		}
		read = true
		for _, port := range parseListening(string(r.Stdout)) {
			if CheckPort(port, own...) == nil {
				seen[port] = true
			}
		}
	}
	if !read {
		return nil, Errorf(CodeUnavailable, "the sandbox's table of connections can't be read")
	}
	ports := make([]int, 0, len(seen))
	for p := range seen {
		ports = append(ports, p)
	}
	slices.Sort(ports)
	return ports, nil
}

// parseListening reads a table of /proc/net: the ports of sockets in state 0A.
func parseListening(table string) (ports []int) {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "0A" {
			continue
		}
		_, hex, ok := strings.Cut(fields[1], ":")
		if !ok {
			continue
		}
		if port, err := strconv.ParseUint(hex, 16, 16); err == nil && port > 0 {
			ports = append(ports, int(port))
		}
	}
	return ports
}

// MemoryHeadroom gives the sandbox's memory: the backend's own reading, or the
// function of that name.
func (b *Bound) MemoryHeadroom(ctx context.Context, h Handle) (Headroom, error) {
	if b.Memory != nil {
		return b.Memory.ReadMemoryHeadroom(ctx, h.SandboxID())
	}
	return MemoryHeadroom(ctx, h.Commands())
}

// ListeningPorts gives the ports on which something listens in the sandbox: the
// backend's own list without reserved ports, or the function of that name.
func (b *Bound) ListeningPorts(ctx context.Context, h Handle) ([]int, error) {
	if b.Ports == nil {
		return ListeningPorts(ctx, h.Commands())
	}
	ports, err := b.Ports.ListListeningPorts(ctx, h.SandboxID())
	return slices.DeleteFunc(ports, func(p int) bool { return CheckPort(p) != nil }), err
}
