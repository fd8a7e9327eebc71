package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/astrabox/astrabox/sandbox"
)

// lifecycle measures create, pause, resume and destroy; beside each create it
// runs the floor, so that both see the same machine.
func lifecycle(ctx context.Context, o Options) (_ []Result, err error) {
	s, err := newService(ctx, o.Exe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var create, floor, docker, pause, resume, destroy []time.Duration
	for i := range o.N + 2 {
		began := time.Now()
		h, err := s.Create(ctx, spec())
		if err != nil {
			return nil, err
		}
		if err := hi(ctx, h); err != nil {
			return nil, err
		}
		created := time.Since(began)

		raw, err := s.runcRun(ctx, h.SandboxID(), fmt.Sprintf("floor%d", i))
		if err != nil {
			return nil, err
		}
		began = time.Now()
		if ok, err := s.Pauser.Pause(ctx, h.SandboxID()); err != nil || !ok {
			return nil, fmt.Errorf("pause: %v %w", ok, err)
		}
		paused := time.Since(began)
		began = time.Now()
		if ok, err := s.Pauser.Resume(ctx, h.SandboxID()); err != nil || !ok {
			return nil, fmt.Errorf("resume: %v %w", ok, err)
		}
		resumed := time.Since(began)
		began = time.Now()
		if d := sandbox.ConfirmDestroyed(ctx, s.Bound, h.SandboxID()); d.Outcome != sandbox.Gone {
			return nil, fmt.Errorf("destroy: %s: %s", d.Outcome, d.Detail)
		}
		destroyed := time.Since(began)
		if i < 2 {
			continue // warm-up: page cache, first connections
		}
		create, floor = append(create, created), append(floor, raw)
		pause, resume, destroy = append(pause, paused), append(resume, resumed), append(destroy, destroyed)
	}
	results := []Result{
		timed("create_first_output", "<= 2.0 x", create, "runc_run", floor),
		timed("pause", "<= 100 ms", pause, "", nil),
		timed("resume", "<= 150 ms", resume, "", nil),
		timed("destroy_proven", "<= 100 ms", destroy, "", nil),
	}
	if docker, err = dockerRun(ctx, o.N); err == nil {
		results = append(results, timed("create_first_output_docker", "<= 0.25 x", create, "docker_run", docker))
	} else {
		fmt.Fprintf(os.Stderr, "no measure beside docker: %v\n", err)
	}
	return results, nil
}

func hi(ctx context.Context, h sandbox.Handle) error {
	r, err := h.Commands().Run(ctx, sandbox.Command{Line: "echo hi"})
	if err == nil && string(r.Stdout) != "hi\n" {
		err = fmt.Errorf("echo hi printed %q", r.Stdout)
	}
	return err
}

// runcRun is the floor of a create: the runtime alone, with the namespaces,
// filters and limits of that running sandbox and its mounted root, from its
// start until the output of "echo hi".
func (s *service) runcRun(ctx context.Context, sandboxID, name string) (time.Duration, error) {
	bundle, err := s.box(sandboxID)
	if err != nil {
		return 0, err
	}
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return 0, err
	}
	var c specs.Spec
	if err := json.Unmarshal(b, &c); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "astrabox-floor-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if !filepath.IsAbs(c.Root.Path) {
		c.Root.Path = filepath.Join(bundle, c.Root.Path)
	}
	c.Process.Args, c.Hooks = []string{"sh", "-c", "echo hi"}, nil
	c.Linux.CgroupsPath = filepath.Join(filepath.Dir(c.Linux.CgroupsPath), name)
	if b, err = json.Marshal(c); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		return 0, err
	}
	runc := os.Getenv("ASTRABOX_RUNC_PATH")
	if runc == "" {
		self, err := os.Executable()
		if err != nil {
			return 0, err
		}
		runc = filepath.Join(filepath.Dir(self), "runc")
	}
	return firstOutput(exec.CommandContext(ctx, runc, "--root", filepath.Join(dir, "state"), "run", "--bundle", dir, name))
}

// firstOutput runs a command that prints hi and gives the time until it did.
func firstOutput(cmd *exec.Cmd) (time.Duration, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	buf := make([]byte, 3)
	_, readErr := io.ReadFull(out, buf)
	took := time.Since(began)
	if err := cmd.Wait(); err != nil || readErr != nil || string(buf) != "hi\n" {
		return 0, fmt.Errorf("%s: printed %q, %w: %s", filepath.Base(cmd.Path), buf, err, stderr.Bytes())
	}
	return took, nil
}

// dockerRun is docker run of the same user space, then docker exec of echo hi,
// where a daemon answers.
func dockerRun(ctx context.Context, n int) ([]time.Duration, error) {
	if err := exec.CommandContext(ctx, "docker", "info").Run(); err != nil {
		return nil, fmt.Errorf("docker info: %w", err)
	}
	const image = "astrabox-bench:floor"
	script := `set -e; d=$(mktemp -d); mkdir -p $d/usr $d/proc $d/sys $d/dev $d/etc $d/tmp
for l in bin sbin lib lib64; do [ -L /$l ] && cp -P /$l $d/; done
tar -C $d -c . | docker import - ` + image + ` >/dev/null; rm -rf $d`
	if out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("docker import: %w: %s", err, out)
	}
	defer exec.Command("docker", "rmi", "-f", image).Run() //nolint:errcheck // clean-up
	var samples []time.Duration
	for i := range n + 1 {
		name := fmt.Sprintf("astrabox-bench-%d-%d", os.Getpid(), i)
		began := time.Now()
		out, err := exec.CommandContext(ctx, "docker", "run", "-d", "--name", name, "-v", "/usr:/usr:ro", image, "sleep", "60").CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("docker run: %w: %s", err, out)
		}
		_, err = firstOutput(exec.CommandContext(ctx, "docker", "exec", name, "sh", "-c", "echo hi"))
		took := time.Since(began)
		if rm := exec.Command("docker", "rm", "-f", name).Run(); err == nil {
			err = rm
		}
		if err != nil {
			return nil, err
		}
		if i > 0 {
			samples = append(samples, took)
		}
	}
	return samples, nil
}
