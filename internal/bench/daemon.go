package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// daemon is an execd outside a sandbox, so that nothing but it is measured.
type daemon struct {
	cmd   *exec.Cmd
	base  string
	token string
	conn  *execd.Conn
	dir   string // scratch, on the disk that temporary files are on
}

// withDaemon gives each measure a fresh daemon.
func withDaemon(f func(context.Context, Options, *daemon) ([]Result, error)) func(context.Context, Options) ([]Result, error) {
	return func(ctx context.Context, o Options) (_ []Result, err error) {
		d, err := startDaemon(ctx, o.Exe)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, d.stop()) }()
		return f(ctx, o, d)
	}
}

func startDaemon(ctx context.Context, exe string) (_ *daemon, err error) {
	path := os.Getenv("ASTRABOX_EXECD_PATH")
	if path == "" {
		path = filepath.Join(filepath.Dir(exe), "execd")
	}
	d := &daemon{token: rand.Text()}
	if d.dir, err = os.MkdirTemp("", "astrabox-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(d.dir)
		}
	}()
	tokenOut, tokenIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer tokenOut.Close()
	defer tokenIn.Close()
	readyOut, readyIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyOut.Close()
	defer readyIn.Close()
	address := net.JoinHostPort("127.0.0.1", fmt.Sprint(wire.Port))
	d.base = "http://" + address
	d.cmd = exec.CommandContext(ctx, path, "--listen", address, "--token-fd", "3", "--ready-fd", "4", "--reserve-mounts") // as in a sandbox
	d.cmd.ExtraFiles, d.cmd.Stderr = []*os.File{tokenOut, readyIn}, os.Stderr
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) }
	d.cmd.WaitDelay = 10 * time.Second
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	_, err = tokenIn.WriteString(d.token)
	tokenIn.Close()
	readyIn.Close()
	if err == nil {
		_, err = readyOut.Read(make([]byte, 16))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %s doesn't start: %w", path, err), d.stop())
	}
	u, err := url.Parse(d.base)
	if err != nil {
		return nil, err
	}
	d.conn = execd.Dial(execd.Fixed(sandbox.Endpoint{URL: u, Headers: map[string]string{wire.HeaderToken: d.token}}), nil)
	return d, nil
}

// stop ends the daemon, which it does by itself, and removes the scratch.
func (d *daemon) stop() error {
	execd.CloseIdleConnections()
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it has ended: Wait says how
	return errors.Join(d.cmd.Wait(), os.RemoveAll(d.dir))
}

// daemonMemory is the daemon's resident set before anything was asked of it.
func daemonMemory(_ context.Context, _ Options, d *daemon) ([]Result, error) {
	n, err := residentBytes(d.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	return []Result{measured("execd_rss_idle", "MiB", "<= 10 MiB", []float64{float64(n) / (1 << 20)}, "", nil)}, nil
}

// timeOf gives how long f took.
func timeOf(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

// perSecond makes rates of the times that n units took.
func perSecond(n float64, times []time.Duration) []float64 {
	rates := make([]float64, len(times))
	for i, t := range times {
		rates[i] = n / t.Seconds()
	}
	return rates
}

// inTurns runs a measure and its floor in turns, so that both see the same
// machine, and drops the first of each, which warms up.
func inTurns(n int, measure, floor func() (time.Duration, error)) (values, floors []time.Duration, err error) {
	for i := range n + 1 {
		v, err := measure()
		if err != nil {
			return nil, nil, err
		}
		f, err := floor()
		if err != nil {
			return nil, nil, err
		}
		if i > 0 {
			values, floors = append(values, v), append(floors, f)
		}
	}
	return values, floors, nil
}
