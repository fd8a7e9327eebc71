package execd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
)

// losing is a process whose attachments are lost at once; attach gives the error
// of the attempts after the first.
type losing struct {
	sandbox.Processes
	attempts int
	attach   func() error
}

func (l *losing) Attach(context.Context, string, sandbox.AttachOptions) (sandbox.Attachment, error) {
	if l.attempts++; l.attempts > 1 {
		return nil, l.attach()
	}
	return lost{}, nil
}

type lost struct{ sandbox.Attachment }

func (lost) Recv(context.Context) (sandbox.Frame, error) {
	return sandbox.Frame{}, sandbox.ErrUnreachable
}
func (lost) Close() error { return nil }

// A connection is made again as long as there may be something to reach, and no
// longer: the backend's word that the sandbox is gone, or paused, ends it.
func TestKeepGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		ends bool
	}{
		"out of reach":        {sandbox.ErrUnreachable, false},
		"held by what's lost": {sandbox.ErrProcessHeld, false},
		"gone":                {fmt.Errorf("%w: %w", sandbox.ErrUnreachable, sandbox.Errorf(sandbox.CodeNotFound, "no")), true},
		"paused":              {fmt.Errorf("%w: %w", sandbox.ErrUnreachable, sandbox.Errorf(sandbox.CodeNotRunning, "no")), true},
		"no such process":     {sandbox.ErrProcessNotFound, true},
		"taken":               {sandbox.ErrDisplaced, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				l := &losing{attach: func() error { return c.err }}
				a, err := execd.Keep(ctx, l, "p", sandbox.AttachOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				begun := time.Now()
				_, err = a.Recv(ctx)
				if c.ends && (!errors.Is(err, c.err) || time.Since(begun) > time.Minute) || !c.ends && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}
