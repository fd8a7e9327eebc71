package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
)

func TestPortable(t *testing.T) {
	secret := errors.New("dial 10.0.0.1: token=hunter2")
	withID := sandbox.Errorf(sandbox.CodeCleanupUnconfirmed, "left over: %w", secret)
	withID.SandboxID = "a"
	withID.Message = "left over"
	for _, tt := range []struct {
		name string
		err  error
		is   []error
	}{
		{"gone", fmt.Errorf("x: %w", sandbox.Errorf(sandbox.CodeGone, "it went away")), []error{sandbox.ErrGone}},
		{"unsupported", sandbox.Errorf(sandbox.CodePauseUnsupported, "no"), []error{sandbox.ErrUnsupported}},
		{"probe", fmt.Errorf("x: %w", sandbox.ErrProbeUnsupported), []error{sandbox.ErrProbeUnsupported}},
		{"path", &sandbox.PathError{Op: "stat", Path: "/x", Err: sandbox.ErrPathNotFound}, []error{sandbox.ErrPathNotFound, fs.ErrNotExist}},
		{"changed", &sandbox.PathError{Op: "write", Path: "/x", Err: sandbox.ErrChanged}, []error{sandbox.ErrChanged, sandbox.ErrPathRejected}},
		{"unreachable", fmt.Errorf("%w: %w", sandbox.ErrUnreachable, secret), []error{sandbox.ErrUnreachable}},
		{"deadline", fmt.Errorf("run: %w", context.DeadlineExceeded), []error{context.DeadlineExceeded}},
		{"eof", io.EOF, []error{io.EOF}},
		{"held", sandbox.ErrProcessHeld, []error{sandbox.ErrProcessHeld}},
		{"displaced", sandbox.ErrDisplaced, []error{sandbox.ErrDisplaced}},
		{"session", sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "no"), []error{sandbox.ErrIsolatedSessionNotFound}},
		{"with an id", withID, nil},
		{"gap", fmt.Errorf("x: %w", &sandbox.ReplayGapError{From: 1, Oldest: 5}), nil},
		{"any other", secret, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := json.Marshal(sandbox.Portable(tt.err))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), "hunter2") {
				t.Errorf("a cause travels: %s", b)
			}
			var p *sandbox.PortableError
			if err := json.Unmarshal(b, &p); err != nil {
				t.Fatal(err)
			}
			got := p.Err()
			for _, is := range tt.is {
				if !errors.Is(got, is) {
					t.Errorf("%v is no longer %v", got, is)
				}
			}
			if sandbox.CodeOf(got) != sandbox.CodeOf(tt.err) {
				t.Errorf("the code became %q", sandbox.CodeOf(got))
			}
			var a, e *sandbox.Error
			if errors.As(tt.err, &a) && (!errors.As(got, &e) || a.Message != e.Message || a.Status != e.Status || a.Retryable != e.Retryable || a.SandboxID != e.SandboxID) {
				t.Errorf("%+v became %+v", a, e)
			}
			var g, h *sandbox.ReplayGapError
			if errors.As(tt.err, &g) && (!errors.As(got, &h) || *g != *h) {
				t.Errorf("%v", got)
			}
			var x, y *sandbox.PathError
			if errors.As(tt.err, &x) && (!errors.As(got, &y) || x.Op != y.Op || x.Path != y.Path) {
				t.Errorf("%v", got)
			}
			for _, other := range []error{sandbox.ErrGone, sandbox.ErrPathNotFound, sandbox.ErrUnreachable, context.Canceled} {
				if errors.Is(got, other) != errors.Is(tt.err, other) {
					t.Errorf("%v: %v", got, other)
				}
			}
		})
	}
	if sandbox.Portable(nil) != nil || (*sandbox.PortableError)(nil).Err() != nil {
		t.Error("nil is no longer nil")
	}
}
