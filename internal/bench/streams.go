package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/creack/pty"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
)

const (
	pipeBytes = 200 << 20
	ttyBytes  = 32 << 20
)

// streams measures the output of processes that write as fast as they can,
// beside a reader of their pipe or terminal.
func streams(ctx context.Context, o Options, d *daemon) ([]Result, error) {
	var results []Result
	for _, m := range []struct {
		name, line, floor string
		tty               *sandbox.Size
		bytes             int64
	}{
		{"stream_pipe", fmt.Sprintf("yes %s | head -c %d", strings.Repeat("x", 63), int64(pipeBytes)), "read of its pipe", nil, pipeBytes},
		{"stream_tty", fmt.Sprintf("stty raw; head -c %d /dev/zero", int64(ttyBytes)), "read of its terminal", &sandbox.Size{Cols: 80, Rows: 24}, ttyBytes},
	} {
		values, floors, err := inTurns(max(o.N/4, 3), func() (time.Duration, error) {
			return timeOf(func() error { return d.stream(ctx, m.line, m.tty, m.bytes) })
		}, func() (time.Duration, error) {
			return timeOf(func() error { return rawStream(ctx, m.line, m.tty != nil, m.bytes) })
		})
		if err != nil {
			return nil, err
		}
		mb := float64(m.bytes) / 1e6
		results = append(results, measured(m.name, "MB/s", "<= 1.43 x", perSecond(mb, values), m.floor, perSecond(mb, floors)))
	}
	return results, nil
}

// stream runs a process and reads its output to the end.
func (d *daemon) stream(ctx context.Context, line string, tty *sandbox.Size, want int64) (err error) {
	processes := execd.Processes(d.conn)
	id, err := processes.Start(ctx, sandbox.ProcessSpec{Key: rand.Text(), Line: line, TTY: tty})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, processes.Delete(ctx, id)) }()
	a, err := processes.Attach(ctx, id, sandbox.AttachOptions{})
	if err != nil {
		return err
	}
	defer a.Close()
	var got int64
	for {
		f, err := a.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF) && got == want:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("bench: %s: %d bytes of %d", line, got, want)
		case err != nil:
			return err
		}
		got += int64(len(f.Data))
	}
}

// rawStream is the least that it takes: start it and read.
func rawStream(ctx context.Context, line string, tty bool, want int64) error {
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	var out io.ReadCloser
	var err error
	if tty {
		out, err = pty.Start(cmd)
	} else if out, err = cmd.StdoutPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	defer out.Close()
	buf := make([]byte, 64<<10)
	var got int64
	for got < want {
		n, err := out.Read(buf)
		got += int64(n)
		if err != nil {
			return fmt.Errorf("bench: %s: %d bytes of %d: %w", line, got, want, err)
		}
	}
	return cmd.Wait()
}
