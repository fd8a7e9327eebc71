package execd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// A foreign execd types the code of a run into the session's shell. Given as
// the argument of eval, an open quote is an error instead of a wait without
// end, and what the code starts can't read the rest of it as its input. What is
// lost of the output stays lost: see [Deviations].

// foreign runs a line in a session of a foreign execd. Both streams come as
// stdout, as lines.
func (k isolatedCommands) foreign(ctx context.Context, c sandbox.Command, timeout int64, stdout, _ io.Writer) (sandbox.CommandResult, error) {
	var none sandbox.CommandResult
	code, err := foreignCode(c)
	if err != nil {
		return none, err
	}
	// The daemon counts whole seconds, and its timeout ends the session.
	body, err := json.Marshal(wire.IsolatedRun{Code: code, Envs: c.Env, TimeoutSeconds: (timeout + 999) / 1000})
	if err != nil {
		return none, fmt.Errorf("execd: %w", err)
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	end := time.Duration(timeout) * time.Millisecond
	if timeout > 0 {
		run, stop = context.WithTimeout(run, end+overtime)
		defer stop()
	}
	begun := time.Now()
	resp, err := k.c.do(run, request{
		method: http.MethodPost, path: k.path(), body: bytesBody(body), header: http.Header{"Content-Type": {"application/json"}}, apart: true,
	})
	late := func() bool { return timeout > 0 && time.Since(begun) >= end }
	if err != nil {
		if ctx.Err() == nil && late() {
			err = context.DeadlineExceeded
		}
		return none, k.after(ctx, isolatedError(err))
	}
	defer resp.Body.Close()
	result, err := followIsolated(newEventReader(resp.Body), stdout)
	switch {
	case err == nil:
		return result, nil
	case ctx.Err() != nil:
		return none, ctx.Err()
	case late():
		return none, k.after(ctx, fmt.Errorf("the command ran out of time: %w", context.DeadlineExceeded))
	}
	return none, k.after(ctx, err)
}

// foreignCode is what the session's shell is to read.
func foreignCode(c sandbox.Command) (string, error) {
	if strings.ContainsRune(c.Line, 0) || strings.ContainsRune(c.Dir, 0) {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "the command contains a NUL")
	}
	code := "eval " + quote(c.Line) + " </dev/null"
	if c.Dir != "" {
		code = "( cd -- " + quote(c.Dir) + " && " + code + " )"
	}
	return code, nil
}

// after says of a session that ended with a run that it did, so that nobody
// goes on with it. A deadline is still to be found in the error.
func (k isolatedCommands) after(ctx context.Context, cause error) error {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	_, err := k.c.isolatedState(asking, k.id)
	if !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) || errors.Is(cause, sandbox.ErrIsolatedSessionNotFound) {
		return cause
	}
	return fmt.Errorf("%w, and the isolated session has ended with it (%w)", cause,
		sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "the isolated session ended with a run"))
}

// followIsolated reads events to the one that ends the run. There is no init
// and no ping, and blank lines are lost.
func followIsolated(r *eventReader, stdout io.Writer) (sandbox.CommandResult, error) {
	var result sandbox.CommandResult
	for {
		e, err := r.next()
		if err != nil {
			return result, fmt.Errorf("%w: the connection to a running command was lost", sandbox.ErrUnreachable)
		}
		switch e.Type {
		case "stdout", "stderr":
			if stdout == nil {
				continue
			}
			if _, err := io.WriteString(stdout, strings.TrimSuffix(e.Text, "\n")+"\n"); err != nil {
				return result, fmt.Errorf("execd: the command's output can't be passed on: %w", err)
			}
		case "execution_complete":
			return result, nil
		case "error":
			if e.Error != nil {
				if code, err := strconv.Atoi(e.Error.Value); err == nil {
					result.ExitCode = code
					return result, nil
				}
				return result, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox couldn't run it: %s", e.Error.Value)
			}
			return result, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox couldn't run it: %s", e.Text)
		case "":
			if e.Code != "" {
				return result, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox couldn't run it: %s", e.Message)
			}
		}
	}
}
