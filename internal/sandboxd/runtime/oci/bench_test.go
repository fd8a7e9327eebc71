package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
)

// BenchmarkCreate is create until execd answered, with the sandbox's removal
// outside the clock.
func BenchmarkCreate(b *testing.B) {
	p := newPlace(b, "bcreat")
	r := p.open()
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("b%d", i)
		if _, err := r.Create(b.Context(), spec(id)); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if _, err := r.Destroy(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkRuncRun is the floor: "runc run" of the same configuration with
// mounts made outside the clock, no link, and "echo hi" instead of execd, until
// its output.
func BenchmarkRuncRun(b *testing.B) {
	p := newPlace(b, "bfloor")
	r := p.open()
	ids, err := r.ranges.take()
	if err != nil {
		b.Fatal(err)
	}
	defer r.ranges.free(ids)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		dir := b.TempDir()
		bx := box{id: fmt.Sprintf("f%d", i), run: filepath.Join(p.cfg.RunDir, "floor")}
		bx.root = filepath.Join(bx.run, "rootfs")
		if err := os.MkdirAll(bx.root, 0o755); err != nil {
			b.Fatal(err)
		}
		layers := rootfs.Layers{Dir: filepath.Join(dir, "layers")}
		if err := layers.Make(ids); err != nil {
			b.Fatal(err)
		}
		if err := r.mount(bx, layers, ids); err != nil {
			b.Fatal(err)
		}
		s := r.spec.build(spec(bx.id), bx, ids, nil)
		s.Process.Args = []string{"sh", "-c", "echo hi"}
		s.Hooks = nil
		j, _ := json.Marshal(s)
		if err := os.WriteFile(filepath.Join(bx.run, "config.json"), j, 0o600); err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(runcPath, "--root", r.runc.root, "run", "--bundle", bx.run, bx.id)
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		if n, err := out.Read(make([]byte, 8)); err != nil || n != 3 {
			b.Fatal(n, err)
		}
		b.StopTimer()
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		mounts, err := rootfs.Unmount(bx.root)
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range mounts {
			m.Close()
		}
		os.RemoveAll(bx.run)
		b.StartTimer()
	}
}

// BenchmarkDestroy is a running sandbox until it's proven gone.
func BenchmarkDestroy(b *testing.B) {
	p := newPlace(b, "bdestr")
	r := p.open()
	var worst time.Duration
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
		worst = max(worst, e.Took)
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
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
