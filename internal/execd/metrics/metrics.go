// Package metrics measures the processor and memory use of a sandbox. The
// daemon's /metrics handlers call it.
//
// Where the sandbox sees its own control group (version 2 or 1) and that has
// limits, those count; otherwise the machine's figures from /proc do. A Meter
// is safe for concurrent use; errors are those of reading /proc.
package metrics

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// shortest and longest are the span over which processor use is measured.
	shortest = 100 * time.Millisecond
	longest  = time.Minute

	mib = 1 << 20
)

// Sample is one measurement.
type Sample struct {
	CPUs    float64 `json:"cpu_count"`
	CPUUsed float64 `json:"cpu_used_pct"` // of all CPUs, 0 to 100
	Total   float64 `json:"mem_total_mib"`
	Used    float64 `json:"mem_used_mib"`
	At      int64   `json:"timestamp"` // Unix milliseconds
}

// Meter measures. Each of its samples covers the time since the one before.
type Meter struct {
	root string // "/" but in tests

	mu    sync.Mutex
	last  time.Time
	spent time.Duration
}

// New makes a Meter.
func New() *Meter { return &Meter{root: "/"} }

// Sample measures. It waits a moment when the last sample is too fresh or too
// old to measure from.
func (m *Meter) Sample(ctx context.Context) (Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if age := time.Since(m.last); age < shortest || age > longest {
		if err := m.mark(); err != nil {
			return Sample{}, err
		}
		wait := time.NewTimer(shortest)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return Sample{}, ctx.Err()
		}
	}
	s := Sample{CPUs: m.cpus(), At: time.Now().UnixMilli()}
	was, before := m.spent, m.last
	if err := m.mark(); err != nil {
		return s, err
	}
	s.CPUUsed = min(max(100*float64(m.spent-was)/float64(m.last.Sub(before))/s.CPUs, 0), 100)
	total, used, err := m.memory()
	s.Total, s.Used = float64(total)/mib, float64(used)/mib
	return s, err
}

// mark notes the processor time spent until now.
func (m *Meter) mark() (err error) {
	m.spent, err = m.cpuTime()
	m.last = time.Now()
	return err
}

func (m *Meter) read(path string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(m.root, path))
	return strings.TrimSpace(string(b)), err == nil
}

func (m *Meter) number(path string) (float64, bool) {
	s, ok := m.read(path)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil
}

// field finds "name value" in a file of such lines.
func (m *Meter) field(path, name string) (float64, bool) {
	s, ok := m.read(path)
	if !ok {
		return 0, false
	}
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) >= 2 && strings.TrimSuffix(f[0], ":") == name {
			n, err := strconv.ParseFloat(f[1], 64)
			return n, err == nil
		}
	}
	return 0, false
}

const (
	v2 = "sys/fs/cgroup/"
	v1 = "sys/fs/cgroup/cpu/"
	// v1Time and v1Memory stand beside v1.
	v1Time   = "sys/fs/cgroup/cpuacct/cpuacct.usage"
	v1Memory = "sys/fs/cgroup/memory/"
)

// quota gives the limit of the group in CPUs.
func (m *Meter) quota() (float64, bool) {
	if s, ok := m.read(v2 + "cpu.max"); ok {
		if f := strings.Fields(s); len(f) == 2 && f[0] != "max" {
			quota, err1 := strconv.ParseFloat(f[0], 64)
			period, err2 := strconv.ParseFloat(f[1], 64)
			return quota / period, err1 == nil && err2 == nil && quota > 0 && period > 0
		}
		return 0, false
	}
	quota, ok1 := m.number(v1 + "cpu.cfs_quota_us")
	period, ok2 := m.number(v1 + "cpu.cfs_period_us")
	return quota / period, ok1 && ok2 && quota > 0 && period > 0
}

func (m *Meter) cpus() float64 {
	machine := float64(runtime.NumCPU())
	if q, ok := m.quota(); ok {
		return min(q, machine)
	}
	return machine
}

// cpuTime gives what was spent: by the group if it has a limit, else by the machine.
func (m *Meter) cpuTime() (time.Duration, error) {
	if _, ok := m.quota(); ok {
		if us, ok := m.field(v2+"cpu.stat", "usage_usec"); ok {
			return time.Duration(us) * time.Microsecond, nil
		}
		if ns, ok := m.number(v1Time); ok {
			return time.Duration(ns), nil
		}
	}
	s, ok := m.read("proc/stat")
	first, _, _ := strings.Cut(s, "\n")
	f := strings.Fields(first) // cpu user nice system idle iowait irq softirq steal …
	if !ok || len(f) < 9 {
		return 0, errors.New("metrics: /proc/stat can't be read")
	}
	const tick = 10 * time.Millisecond // what the kernel shows times in
	var spent time.Duration
	for i, v := range f[1:9] {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0, errors.New("metrics: /proc/stat can't be read")
		}
		if i != 3 && i != 4 { // idle, iowait
			spent += time.Duration(n) * tick
		}
	}
	return spent, nil
}

// MemoryLimit gives the memory that there is, in bytes; 0: unknown.
func (m *Meter) MemoryLimit() int64 {
	total, _, err := m.memory()
	if err != nil {
		return 0
	}
	return int64(total)
}

// memory gives the group's where it has a limit below the machine's.
func (m *Meter) memory() (total, used float64, err error) {
	total, ok1 := m.field("proc/meminfo", "MemTotal")
	available, ok2 := m.field("proc/meminfo", "MemAvailable")
	if !ok1 || !ok2 {
		return 0, 0, errors.New("metrics: /proc/meminfo can't be read")
	}
	total, used = total*1024, (total-available)*1024
	for _, group := range []struct{ limit, usage, stat, cache string }{
		{v2 + "memory.max", v2 + "memory.current", v2 + "memory.stat", "inactive_file"},
		{v1Memory + "memory.limit_in_bytes", v1Memory + "memory.usage_in_bytes", v1Memory + "memory.stat", "total_inactive_file"},
	} {
		limit, ok1 := m.number(group.limit)
		usage, ok2 := m.number(group.usage)
		if ok1 && ok2 && limit < total {
			cache, _ := m.field(group.stat, group.cache)
			return limit, max(usage-cache, 0), nil
		}
	}
	return total, used, nil
}
