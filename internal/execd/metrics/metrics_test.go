package metrics

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// root makes a file system of what the kernel would show.
func root(t *testing.T, files map[string]string) *Meter {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &Meter{root: dir}
}

const (
	procStat = "cpu  100 10 50 9000 40 5 5 0 0 0\ncpu0 1 2 3\n"
	memInfo  = "MemTotal:       8192 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\n"
)

func TestSources(t *testing.T) {
	for name, c := range map[string]struct {
		files             map[string]string
		cpus, total, used float64
		spent             time.Duration
		noCPU, noMemory   bool
	}{
		"the machine": {
			files: map[string]string{"proc/stat": procStat, "proc/meminfo": memInfo},
			cpus:  float64(runtime.NumCPU()), spent: 1700 * time.Millisecond, total: 8 * mib, used: 6 * mib,
		},
		"a group without limits": {
			files: map[string]string{"proc/stat": procStat, "proc/meminfo": memInfo, "sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "1\n"},
			cpus:  float64(runtime.NumCPU()), spent: 1700 * time.Millisecond, total: 8 * mib, used: 6 * mib,
		},
		"version 2": {
			files: map[string]string{
				"proc/stat": procStat, "proc/meminfo": memInfo, "sys/fs/cgroup/cpu.max": "50000 100000\n", "sys/fs/cgroup/cpu.stat": "usage_usec 2000000\nuser_usec 1\n",
				"sys/fs/cgroup/memory.max": "4194304\n", "sys/fs/cgroup/memory.current": "3145728\n", "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 1048576\n",
			},
			cpus: 0.5, spent: 2 * time.Second, total: 4 * mib, used: 2 * mib,
		},
		"version 1": {
			files: map[string]string{
				"proc/stat": procStat, "proc/meminfo": memInfo, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
				"sys/fs/cgroup/cpuacct/cpuacct.usage":        "3000000000\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes": "4194304\n",
				"sys/fs/cgroup/memory/memory.usage_in_bytes": "3145728\n",
				"sys/fs/cgroup/memory/memory.stat":           "total_inactive_file 1048576\n",
			},
			cpus: 0.5, spent: 3 * time.Second, total: 4 * mib, used: 2 * mib,
		},
		"version 1 without limits": {
			files: map[string]string{
				"proc/stat": procStat, "proc/meminfo": memInfo, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
			},
			cpus: float64(runtime.NumCPU()), spent: 1700 * time.Millisecond, total: 8 * mib, used: 6 * mib,
		},
		"nothing": {cpus: float64(runtime.NumCPU()), noCPU: true, noMemory: true},
		"rubbish": {
			files: map[string]string{"proc/stat": "cpu a b c d e f g h\n", "proc/meminfo": "MemTotal: x\n", "sys/fs/cgroup/cpu.max": "0 0\n"},
			cpus:  float64(runtime.NumCPU()), noCPU: true, noMemory: true,
		},
	} {
		m := root(t, c.files)
		if got := m.cpus(); math.Abs(got-c.cpus) > 1e-9 {
			t.Errorf("%s: %v CPUs", name, got)
		}
		if got, err := m.cpuTime(); got != c.spent || (err != nil) != c.noCPU {
			t.Errorf("%s: %v spent, %v", name, got, err)
		}
		if total, used, err := m.memory(); total != c.total || used != c.used || (err != nil) != c.noMemory {
			t.Errorf("%s: memory %v of %v, %v", name, used, total, err)
		}
	}
}

func TestSampleFails(t *testing.T) {
	if s, err := root(t, nil).Sample(t.Context()); err == nil {
		t.Errorf("%+v", s)
	}
}

func TestSample(t *testing.T) {
	m := New()
	for range 2 {
		s, err := m.Sample(t.Context())
		if err != nil || s.CPUs <= 0 || s.CPUUsed < 0 || s.CPUUsed > 100 || s.Used <= 0 || s.Used > s.Total {
			t.Errorf("%+v, %v", s, err)
		}
	}
}
