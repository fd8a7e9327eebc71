package sandbox_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// cats is Commands of a sandbox whose files are these.
func cats(files map[string]string) *scriptedCommands {
	return &scriptedCommands{run: func(line string) (sandbox.CommandResult, error) {
		text, ok := files[line[len("cat "):]]
		switch {
		case text == "unreachable":
			return sandbox.CommandResult{}, sandbox.ErrUnreachable
		case !ok:
			return sandbox.CommandResult{ExitCode: 1}, nil
		}
		return sandbox.CommandResult{Stdout: []byte(text)}, nil
	}}
}

func TestMemoryHeadroom(t *testing.T) {
	const (
		maxV2, useV2 = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"
		maxV1, useV1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"
	)
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  sandbox.Headroom
		free  int64
		err   error
	}{
		{"version 2", map[string]string{maxV2: "1000\n", useV2: "400\n"}, sandbox.Headroom{Limit: 1000, Used: 400}, 600, nil},
		{"version 1", map[string]string{maxV1: "1000\n", useV1: "400\n"}, sandbox.Headroom{Limit: 1000, Used: 400}, 600, nil},
		{"more used than there is", map[string]string{maxV2: "1000\n", useV2: "1400\n"}, sandbox.Headroom{Limit: 1000, Used: 1400}, 0, nil},
		{"unlimited", map[string]string{maxV2: "max\n", useV2: "400\n"}, sandbox.Headroom{}, 0, nil},
		{"unlimited, version 1", map[string]string{maxV1: "9223372036854771712\n", useV1: "400\n"}, sandbox.Headroom{}, 0, nil},
		{"no files", nil, sandbox.Headroom{}, 0, nil},
		{"use unreadable", map[string]string{maxV2: "1000\n"}, sandbox.Headroom{}, 0, nil},
		{"nonsense", map[string]string{maxV2: "-5\n", useV2: "1\n"}, sandbox.Headroom{}, 0, nil},
		{"unreachable", map[string]string{maxV2: "unreachable"}, sandbox.Headroom{}, 0, sandbox.ErrUnreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sandbox.MemoryHeadroom(t.Context(), cats(tt.files))
			if got != tt.want || !errors.Is(err, tt.err) || got.Free() != tt.free || got.Proven() != (tt.want.Limit > 0) {
				t.Errorf("%+v, %v, free %d", got, err, got.Free())
			}
		})
	}
}

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000:AEE4 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100007F:1F91 0100007F:1234 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   3: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4 1 0 100 0 0 10 0
 nonsense
   4: nonsense 0:0 0A
   5: 0:ZZZZ 0:0 0A
`

func TestListeningPorts(t *testing.T) {
	const six = "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0\n   1: 0000:2328 0:0 0A\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		own   []int
		want  []int
		err   bool
	}{
		{"both tables", map[string]string{"/proc/net/tcp": table, "/proc/net/tcp6": six}, nil, []int{80, 8080, 9000}, false},
		{"without IPv6", map[string]string{"/proc/net/tcp": table}, []int{80}, []int{8080}, false},
		{"nothing listens", map[string]string{"/proc/net/tcp": "header\n"}, nil, []int{}, false},
		{"unreadable", nil, nil, nil, true},
		{"unreachable", map[string]string{"/proc/net/tcp": table, "/proc/net/tcp6": "unreachable"}, nil, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sandbox.ListeningPorts(t.Context(), cats(tt.files), tt.own...)
			if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != tt.err {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

func FuzzListeningPorts(f *testing.F) {
	f.Add(table)
	f.Fuzz(func(t *testing.T, text string) {
		ports, err := sandbox.ListeningPorts(t.Context(), &scriptedCommands{run: func(string) (sandbox.CommandResult, error) {
			return sandbox.CommandResult{Stdout: []byte(text)}, nil
		}})
		if err != nil || !slices.IsSorted(ports) {
			t.Fatalf("%v %v", ports, err)
		}
		for i, p := range ports {
			if sandbox.CheckPort(p) != nil || i > 0 && ports[i-1] == p {
				t.Errorf("%v", ports)
			}
		}
	})
}
