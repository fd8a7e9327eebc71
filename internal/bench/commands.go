package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	rateClients = 32
	rateTime    = time.Second
	lineCount   = 1_000_000
)

// events is what a client of the older protocol sees of a command.
type events struct {
	firstOutput, last, end time.Duration // since the request
	lines                  int
}

// command runs a line and reads its events as they come.
func (d *daemon) command(ctx context.Context, line string) (e events, err error) {
	body := `{"command":` + strconv.Quote(line) + `}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.base+"/command", strings.NewReader(body))
	if err != nil {
		return e, err
	}
	req.Header.Set(wire.HeaderToken, d.token)
	began := time.Now()
	resp, err := commandClient.Do(req)
	if err != nil {
		return e, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return e, errors.New("bench: POST /command: " + resp.Status)
	}
	for in := bufio.NewReaderSize(resp.Body, 256<<10); ; {
		event, err := in.ReadSlice('\n')
		switch {
		case bytes.HasPrefix(event, []byte(`{"type":"stdout"`)):
			if e.lines++; e.lines == 1 {
				e.firstOutput = time.Since(began)
			}
		case bytes.HasPrefix(event, []byte(`{"type":"execution_complete"`)):
			e.last = time.Since(began)
		case bytes.HasPrefix(event, []byte(`{"type":"error"`)):
			return e, fmt.Errorf("bench: %s: %s", line, event)
		}
		if errors.Is(err, io.EOF) && e.last > 0 {
			e.end = time.Since(began)
			return e, nil
		}
		if err != nil {
			return e, err
		}
	}
}

// commandClient keeps a connection for each of many clients.
var commandClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: rateClients, DisableCompression: true}}

// bash is the least that a command takes: a program that starts a shell itself.
func bash(ctx context.Context, line string) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		return timeOf(func() error { return exec.CommandContext(ctx, "bash", "-c", line).Run() })
	}
}

func commandTimes(ctx context.Context, o Options, d *daemon) ([]Result, error) {
	defer commandClient.CloseIdleConnections()
	var ends []time.Duration
	values, floors, err := inTurns(10*o.N, func() (time.Duration, error) {
		e, err := d.command(ctx, "true")
		ends = append(ends, e.end-e.last)
		return e.last, err
	}, bash(ctx, "true"))
	if err != nil {
		return nil, err
	}
	first, firstFloors, err := inTurns(o.N, func() (time.Duration, error) {
		e, err := d.command(ctx, "echo x; sleep 0.1")
		return e.firstOutput, err
	}, func() (time.Duration, error) {
		cmd := exec.CommandContext(ctx, "bash", "-c", "echo x; sleep 0.1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 0, err
		}
		took, err := timeOf(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			_, err := io.ReadFull(out, make([]byte, 2))
			return err
		})
		return took, errors.Join(err, cmd.Wait())
	})
	if err != nil {
		return nil, err
	}
	return []Result{
		timed("exec_true", "<= 2.0 x", values, "bash -c true", floors),
		timed("exec_response_end", "<= 1 ms", ends, "", nil),
		timed("exec_first_output", "<= 5 ms", first, "read of its pipe", firstFloors),
	}, nil
}

// commandRate is how many commands a second many clients get done.
func commandRate(ctx context.Context, o Options, d *daemon) ([]Result, error) {
	defer commandClient.CloseIdleConnections()
	var values, floors []float64
	floor := bash(ctx, "true")
	for i := range max(o.N/4, 3) + 1 {
		v, err := rate(func() error { _, err := d.command(ctx, "true"); return err })
		if err != nil {
			return nil, err
		}
		f, err := rate(func() error { _, err := floor(); return err })
		if err != nil {
			return nil, err
		}
		if i > 0 {
			values, floors = append(values, v), append(floors, f)
		}
	}
	return []Result{measured("exec_rate_32", "1/s", "<= 1.33 x", values, "bash -c true", floors)}, nil
}

// rate runs f in rateClients goroutines for rateTime and gives runs per second.
func rate(f func() error) (float64, error) {
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for range rateClients {
		wg.Go(func() {
			for time.Since(began) < rateTime && failed.Load() == nil {
				if err := f(); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

// lineRate is how many short lines of a command's output come a second, to a
// client that only counts them: one that decodes each takes longer than all else.
func lineRate(ctx context.Context, o Options, d *daemon) ([]Result, error) {
	defer commandClient.CloseIdleConnections()
	line := fmt.Sprintf("seq %d", lineCount)
	values, floors, err := inTurns(max(o.N/4, 3), func() (time.Duration, error) {
		e, err := d.command(ctx, line)
		if err == nil && e.lines != lineCount {
			err = fmt.Errorf("bench: %d lines of %d", e.lines, lineCount)
		}
		return e.last, err
	}, func() (time.Duration, error) {
		return timeOf(func() error { _, err := exec.CommandContext(ctx, "bash", "-c", line).Output(); return err })
	})
	if err != nil {
		return nil, err
	}
	r := measured("lines_rate", "lines/s", ">= 1 M/s", perSecond(lineCount, values), "read of its pipe", perSecond(lineCount, floors))
	peak, err := statusBytes(d.cmd.Process.Pid, "VmHWM")
	if err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("daemon's RSS at most %.1f MiB (bound 40)", float64(peak)/(1<<20))
	return []Result{r}, nil
}
