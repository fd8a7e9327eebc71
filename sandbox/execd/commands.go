package execd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// silence is how long a running command's connection may be quiet. The daemon
// says something every 15 s.
const silence = 45 * time.Second

// Commands gives the Commands face of the sandbox that c reaches.
func Commands(c *Conn) sandbox.Commands { return commands{c} }

type commands struct{ c *Conn }

func (k commands) Run(ctx context.Context, c sandbox.Command) (sandbox.CommandResult, error) {
	var stdout, stderr capped
	res, err := k.Stream(ctx, c, &stdout, &stderr)
	res.Stdout, res.Stderr = stdout.b, stderr.b
	res.Truncated = stdout.truncated || stderr.truncated
	return res, err
}

// capped keeps the first sandbox.RunOutputLimit bytes.
type capped struct {
	b         []byte
	truncated bool
}

func (c *capped) Write(p []byte) (int, error) {
	keep := min(len(p), sandbox.RunOutputLimit-len(c.b))
	c.b = append(c.b, p[:keep]...)
	c.truncated = c.truncated || keep < len(p)
	return len(p), nil
}

func (k commands) Stream(ctx context.Context, c sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	var none sandbox.CommandResult
	if c.Line == "" {
		return none, sandbox.Errorf(sandbox.CodeInvalid, "the command line is empty")
	}
	ours, err := k.c.speaks(ctx, wire.FeatureOutput)
	if err != nil {
		return none, err
	}
	timeout, err := timeoutOf(ctx, c.Timeout)
	if err != nil {
		return none, err
	}
	if !ours {
		return foreign(k).stream(ctx, c, timeout, stdout, stderr)
	}
	if err := textOnly(c.Line, c.Dir, c.Env); err != nil {
		return none, err
	}
	body, err := json.Marshal(wire.CommandRequest{Command: c.Line, Cwd: c.Dir, Envs: c.Env, Timeout: timeout})
	if err != nil {
		return none, fmt.Errorf("execd: %w", err)
	}
	return k.c.framed(ctx, "/command", body, stdout, stderr)
}

// framed sends a request that runs something and passes its output on.
func (c *Conn) framed(ctx context.Context, path string, body []byte, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	var none sandbox.CommandResult
	// Ending this context closes the connection, and that stops the command.
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	resp, err := c.do(run, request{
		method: http.MethodPost, path: path, body: bytesBody(body),
		header: http.Header{"Content-Type": {"application/json"}, "Accept": {wire.OutputType}},
	})
	if err != nil {
		return none, startError(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") != wire.OutputType {
		return none, sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox answers commands in another form")
	}
	r := outputReader{r: bufio.NewReader(resp.Body), stop: stop}
	exit, err := r.read(stdout, stderr)
	switch {
	case err != nil && ctx.Err() != nil:
		return none, ctx.Err()
	case errors.Is(context.Cause(run), errSilent):
		return none, lost(errSilent)
	case err != nil:
		return none, err
	case exit.TimedOut:
		return sandbox.CommandResult{ExitCode: exit.Code}, fmt.Errorf("the command ran out of time and was killed: %w", context.DeadlineExceeded)
	}
	return sandbox.CommandResult{ExitCode: exit.Code}, nil
}

// textOnly refuses what JSON can't carry unchanged: it would run another line.
func textOnly(line, dir string, env map[string]string) error {
	bad := func(what string) error {
		return sandbox.Errorf(sandbox.CodeInvalid, "%s isn't UTF-8; put it into a file, or have the line write it", what)
	}
	switch {
	case !utf8.ValidString(line):
		return bad("the command line")
	case !utf8.ValidString(dir):
		return bad("the directory")
	}
	for k, v := range env {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return bad(fmt.Sprintf("the variable %q", k))
		}
	}
	return nil
}

// timeoutOf gives the earlier of the timeout and ctx's deadline in milliseconds; 0: none.
func timeoutOf(ctx context.Context, timeout time.Duration) (int64, error) {
	if timeout < 0 {
		return 0, sandbox.Errorf(sandbox.CodeInvalid, "the timeout is negative")
	}
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		if left <= 0 {
			return 0, context.DeadlineExceeded
		}
		if timeout == 0 || left < timeout {
			timeout = left
		}
	}
	return int64(math.Ceil(float64(timeout) / float64(time.Millisecond))), nil
}

// errSilent: not even a sign of life came.
var errSilent = errors.New("the sandbox fell silent")

// outputReader reads framed output.
type outputReader struct {
	r    *bufio.Reader
	stop context.CancelCauseFunc
	buf  []byte
}

// read copies output to the writers until the command's end.
func (o *outputReader) read(stdout, stderr io.Writer) (wire.CommandExit, error) {
	quiet := time.AfterFunc(silence, func() { o.stop(errSilent) })
	defer quiet.Stop()
	for {
		// Only the sandbox's silence counts, not the time that a writer takes.
		quiet.Reset(silence)
		t, payload, err := o.frame()
		quiet.Stop()
		if err != nil {
			return wire.CommandExit{}, fmt.Errorf("the connection to a running command was lost: %w", lost(err))
		}
		to := stdout
		switch t {
		case wire.FrameExit:
			var exit wire.CommandExit
			if err := json.Unmarshal(payload, &exit); err != nil {
				return exit, fmt.Errorf("the command's end can't be read: %w", lost(err))
			}
			return exit, nil
		case wire.FrameFailed:
			var e wire.Error
			if err := json.Unmarshal(payload, &e); err != nil {
				e.Message = "no reason was given"
			}
			return wire.CommandExit{}, failedStart(e)
		case wire.FrameStdout:
		case wire.FrameStderr:
			to = stderr
		default:
			continue // a keep-alive, or what a later protocol adds
		}
		if to != nil {
			if _, err := to.Write(payload); err != nil {
				return wire.CommandExit{}, fmt.Errorf("execd: the command's output can't be passed on: %w", err)
			}
		}
	}
}

// failedStart translates the failure of a command that the daemon had begun to
// answer for: one that waited for its turn may meet all that a request can.
func failedStart(e wire.Error) error {
	switch e.Code {
	case wire.CodeSessionNotFound:
		return sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "the isolated session ended before the command was run")
	case wire.CodeTooMany:
		return sandbox.Errorf(sandbox.CodeCapacity, "%s", e.Message)
	case wire.CodeStopping:
		return fmt.Errorf("%w: the daemon is stopping", sandbox.ErrUnreachable)
	}
	return sandbox.Errorf(sandbox.CodeInvalid, "the command couldn't be started: %s", e.Message)
}

// frame gives the next frame; the payload is valid until the next call.
func (o *outputReader) frame() (wire.FrameType, []byte, error) {
	var head [wire.FrameHeaderSize]byte
	if _, err := io.ReadFull(o.r, head[:]); err != nil {
		return 0, nil, unexpected(err)
	}
	t, n := wire.FrameHeader(head[:])
	if n > wire.MaxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	if cap(o.buf) < int(n) {
		o.buf = make([]byte, max(int(n), 4<<10))
	}
	b := o.buf[:n]
	_, err := io.ReadFull(o.r, b)
	return t, b, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// startError translates a refusal to start a command or process.
func startError(err error) error {
	var no *refusal
	if !errors.As(err, &no) {
		return err
	}
	switch {
	case no.code == wire.CodeTooMany:
		return sandbox.Errorf(sandbox.CodeCapacity, "%s", no.message)
	case no.unknownPath():
		return sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox lacks a call that is needed")
	case no.status < 500:
		return sandbox.Errorf(sandbox.CodeInvalid, "%s", no.message)
	default:
		return sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox couldn't start it: %s", no.message)
	}
}
