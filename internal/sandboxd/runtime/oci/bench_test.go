package oci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
)

// BenchmarkCreate is create until execd answered, beside "runc run" in turn,
// so that both see the same machine. It reports medians.
func BenchmarkCreate(b *testing.B) {
	p := newPlace(b, "bcreat")
	r := p.open()
	var ours, floor []time.Duration
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("b%d", i)
		start := time.Now()
		if _, err := r.Create(b.Context(), spec(id)); err != nil {
			b.Fatal(err)
		}
		ours = append(ours, time.Since(start))
		if _, err := r.Destroy(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		floor = append(floor, p.runcRun(b, r, fmt.Sprintf("f%d", i)))
	}
	mid := func(ds []time.Duration) float64 {
		slices.Sort(ds)
		return float64(ds[len(ds)/2].Microseconds()) / 1000
	}
	b.ReportMetric(mid(ours), "create-ms")
	b.ReportMetric(mid(floor), "runc-ms")
	b.ReportMetric(mid(ours)/mid(floor), "ratio")
}

// runcRun is the floor: "runc run" of the same configuration with mounts made
// outside the clock, no link, and "echo hi" instead of execd, until its output.
func (p place) runcRun(b *testing.B, r *Runtime, id string) time.Duration {
	ids, err := r.ranges.take()
	if err != nil {
		b.Fatal(err)
	}
	defer r.ranges.free(ids)
	dir := b.TempDir()
	bx := box{id: id, run: filepath.Join(p.cfg.RunDir, "floor")}
	bx.root = filepath.Join(bx.run, "rootfs")
	if err := os.MkdirAll(bx.root, 0o755); err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(bx.run)
	layers := rootfs.Layers{Dir: filepath.Join(dir, "layers")}
	if err := layers.Make(ids); err != nil {
		b.Fatal(err)
	}
	if err := r.mount(b.Context(), bx, layers, ids); err != nil {
		b.Fatal(err)
	}
	defer func() {
		mounts, err := rootfs.Unmount(bx.root)
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range mounts {
			m.Close()
		}
	}()
	s := r.spec.build(spec(bx.id), bx, ids, nil)
	s.Process.Args = []string{"sh", "-c", "echo hi"}
	if err := writeSpec(bx.run, s); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(runcPath, "--root", r.runc.root, "run", "--bundle", bx.run, bx.id)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	n, err := out.Read(make([]byte, 8))
	took := time.Since(start)
	if err != nil || n != 3 {
		b.Fatal(n, err)
	}
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	return took
}

// BenchmarkDestroy is a running sandbox until it's proven gone.
func BenchmarkDestroy(b *testing.B) {
	p := newPlace(b, "bdestr")
	r := p.open()
	var all []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		id := fmt.Sprintf("b%d", i)
		if _, err := r.Create(b.Context(), spec(id)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		e, err := r.Destroy(b.Context(), id)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, e.Took)
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "median-ms")
	b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, "worst-ms")
}

// BenchmarkStopResume gives both halves of a pause.
func BenchmarkStopResume(b *testing.B) {
	p := newPlace(b, "bpause")
	r := p.open()
	p.create(r, spec("a"))
	var stop, resume time.Duration
	n := 0
	for b.Loop() {
		n++
		t0 := time.Now()
		if err := r.Stop(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if _, err := r.Resume(b.Context(), spec("a")); err != nil {
			b.Fatal(err)
		}
		stop += t1.Sub(t0)
		resume += time.Since(t1)
	}
	b.ReportMetric(float64(stop.Microseconds())/1000/float64(n), "stop-ms")
	b.ReportMetric(float64(resume.Microseconds())/1000/float64(n), "resume-ms")
}
