package sandbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func goodHandle(id string) *doubleHandle {
	return &doubleHandle{id: id, files: someFiles{}, commands: &scriptedCommands{}, processes: sandbox.UnsupportedProcesses("scripted")}
}

// panicking has an id and nothing else that works.
type panicking struct{ *doubleHandle }

func (panicking) Files() sandbox.Files { panic("boom") }
func (panicking) Close() error         { panic("boom, too") }

type nameless doubleHandle

func (*nameless) SandboxID() string              { panic("boom") }
func (n *nameless) Files() sandbox.Files         { return n.files }
func (n *nameless) Commands() sandbox.Commands   { return n.commands }
func (n *nameless) Processes() sandbox.Processes { return n.processes }
func (*nameless) Endpoint(context.Context, int) (sandbox.Endpoint, error) {
	return sandbox.Endpoint{}, errors.ErrUnsupported
}
func (*nameless) SignedEndpoint(context.Context, int, time.Time) (sandbox.Endpoint, error) {
	return sandbox.Endpoint{}, errors.ErrUnsupported
}

// closing is a handle with something to close.
type closing struct {
	*doubleHandle
	closed int
}

func (c *closing) Close() error { c.closed++; return nil }

func TestHandlesAreHeldToTheContract(t *testing.T) {
	spoil := func(f func(*doubleHandle)) sandbox.Handle {
		h := goodHandle("a")
		f(h)
		return h
	}
	for _, tt := range []struct {
		name      string
		caps      sandbox.Capabilities
		h         sandbox.Handle
		code      sandbox.Code // empty: accepted
		destroyed bool         // Create destroys what it can name
	}{
		{name: "good", h: goodHandle("a")},
		{name: "nil", h: nil, code: sandbox.CodeUnavailable},
		{name: "a nil pointer", h: (*doubleHandle)(nil), code: sandbox.CodeUnavailable},
		{name: "no id", h: goodHandle(""), code: sandbox.CodeUnavailable},
		{name: "an id that isn't one", h: goodHandle("../x"), code: sandbox.CodeUnavailable},
		{name: "no files", h: spoil(func(h *doubleHandle) { h.files = nil }), code: sandbox.CodeUnavailable, destroyed: true},
		{name: "no commands", h: spoil(func(h *doubleHandle) { h.commands = nil }), code: sandbox.CodeUnavailable, destroyed: true},
		{name: "no processes", h: spoil(func(h *doubleHandle) { h.processes = nil }), code: sandbox.CodeUnavailable, destroyed: true},
		{name: "faces that panic", h: panicking{goodHandle("a")}, code: sandbox.CodeUnavailable, destroyed: true},
		{name: "an id that panics", h: (*nameless)(goodHandle("a")), code: sandbox.CodeUnavailable},
		{name: "declared and unsupported processes", caps: sandbox.Capabilities{ProcessSessions: true}, h: goodHandle("a"), code: sandbox.CodeInvalid, destroyed: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &bare{caps: tt.caps}
			p.create = func(sandbox.CreateSpec) (sandbox.Handle, error) { return tt.h, nil }
			p.connect = func(string) (sandbox.Handle, error) { return tt.h, nil }
			p.kill = func() (bool, error) { return true, nil }
			p.probe = func(int) (sandbox.Observation, error) {
				return sandbox.Observation{Status: sandbox.ObservedGone}, nil
			}
			b, err := sandbox.Bind(driverOf(tt.caps), p)
			if err != nil {
				t.Fatal(err)
			}
			h, err := b.Connect(t.Context(), "a")
			if sandbox.CodeOf(err) != tt.code || (h == nil) != (tt.code != "") || p.kills != 0 {
				t.Errorf("Connect: %v, %v, %d kills", h, err, p.kills)
			}
			h, err = b.Create(t.Context(), goodSpec())
			if sandbox.CodeOf(err) != tt.code || (h == nil) != (tt.code != "") || (p.kills == 1) != tt.destroyed {
				t.Errorf("Create: %v, %v, %d kills", h, err, p.kills)
			}
			if !tt.destroyed {
				return
			}
			p.probe = func(int) (sandbox.Observation, error) {
				return sandbox.Observation{}, errors.New("no route")
			}
			_, err = b.Create(t.Context(), goodSpec())
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Code != sandbox.CodeCleanupUnconfirmed || e.SandboxID != "a" {
				t.Errorf("Create whose clean-up can't be confirmed: %v", err)
			}
		})
	}
}

func TestConnectToAnother(t *testing.T) {
	p := &bare{}
	other := &closing{doubleHandle: goodHandle("b")}
	p.connect = func(string) (sandbox.Handle, error) { return other, nil }
	b, err := sandbox.Bind(driverOf(p.caps), p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Connect(t.Context(), "a"); sandbox.CodeOf(err) != sandbox.CodeUnavailable || other.closed != 1 {
		t.Errorf("%v, closed %d times", err, other.closed)
	}
}
