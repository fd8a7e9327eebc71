package sandboxfake_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/conform/script"
	"github.com/astrabox/astrabox/sandbox/sandboxfake"
)

func spec() sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: "i", OwnerID: "o", AssignmentID: "a", Image: "img",
		ResourceLimits: map[string]string{"cpu": "1"}, ResourceRequests: map[string]string{"cpu": "1"},
	}
}

// fake makes a provider in a bubble, and ends it with the test.
func fake(t *testing.T, o sandboxfake.Options) *sandboxfake.Provider {
	p := sandboxfake.New(o)
	t.Cleanup(func() { p.Close() })
	return p
}

func create(t *testing.T, p sandbox.Provider) sandbox.Handle {
	t.Helper()
	h, err := p.Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func bind(t *testing.T, p *sandboxfake.Provider) *sandbox.Bound {
	t.Helper()
	b, err := sandbox.Bind(p.Driver(), p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// report fails the test for every clause that failed.
func report(t *testing.T, r conform.Report) {
	t.Helper()
	if !r.OK() {
		var b strings.Builder
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		t.Error(b.String())
	}
}

func TestHonestFakePasses(t *testing.T) {
	for name, o := range map[string]sandboxfake.Options{
		"everything": {},
		"nothing":    {Capabilities: &sandbox.Capabilities{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake(t, o)
				b := bind(t, p)
				live := &conform.Live{Provider: b, Spec: spec, Account: sandboxfake.Account, ShortTTL: time.Second, Twin: p.Twin}
				cases := append(conform.Structural(conform.Subject{Driver: p.Driver(), Provider: p}), live.Cases()...)
				r := conform.Check(t.Context(), cases, conform.Options{Provider: p.Name()})
				report(t, r)
				if name == "everything" && r.Summary.Skipped > 0 {
					t.Errorf("skipped: %+v", r.Summary)
				}
				if err := live.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Both directions of every flag: what is masked is refused, and all else works.
func TestHonestFakePassesMasked(t *testing.T) {
	for _, flag := range []string{"Pause", "CorrelatedCreate", "InventoryListing", "ProcessSessions"} {
		t.Run(flag, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake(t, sandboxfake.Options{})
				b, err := sandbox.Bind(p.Driver(), p, flag)
				if err != nil {
					t.Fatal(err)
				}
				live := &conform.Live{Provider: b, Spec: spec, Account: sandboxfake.Account, ShortTTL: time.Second, Twin: p.Twin}
				r := conform.Check(t.Context(), live.Cases(), conform.Options{Provider: p.Name()})
				report(t, r)
				if r.Summary.NotDeclared == 0 {
					t.Errorf("nothing counts as not declared: %+v", r.Summary)
				}
				if err := live.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestFaults(t *testing.T) {
	const patience = 5 * time.Second
	for name, tt := range map[string]struct {
		fault sandboxfake.Fault
		do    func(ctx context.Context, p *sandboxfake.Provider, h sandbox.Handle) error
		want  error
		took  time.Duration
		// left is whether the sandbox exists and /f was written afterwards.
		exists, wrote bool
	}{
		"refuse":                     {sandboxfake.Fault{Op: "Files.Write", Effect: sandboxfake.Refuse}, write, sandbox.ErrUnreachable, 0, true, false},
		"refuse with an error":       {sandboxfake.Fault{Op: "*", Effect: sandboxfake.Refuse, Err: errors.ErrUnsupported}, write, errors.ErrUnsupported, 0, true, false},
		"hang":                       {sandboxfake.Fault{Op: "Files.*", Effect: sandboxfake.Hang}, write, context.DeadlineExceeded, patience, true, false},
		"lost answer":                {sandboxfake.Fault{Op: "Files.Write", Effect: sandboxfake.LoseAnswer}, write, sandbox.ErrUnreachable, 0, true, true},
		"slow":                       {sandboxfake.Fault{Op: "Files.Write", Effect: sandboxfake.Slow, Delay: time.Second}, write, nil, time.Second, true, true},
		"too slow":                   {sandboxfake.Fault{Op: "Files.Write", Effect: sandboxfake.Slow, Delay: time.Hour}, write, context.DeadlineExceeded, patience, true, false},
		"vanish":                     {sandboxfake.Fault{Op: "Files.Write", Effect: sandboxfake.Vanish}, write, sandbox.ErrGone, 0, false, false},
		"lie":                        {sandboxfake.Fault{Op: "Files.Write", Effect: sandboxfake.Lie}, write, nil, 0, true, false},
		"later":                      {sandboxfake.Fault{Op: "Files.Write", Effect: sandboxfake.Refuse, Skip: 1}, write, nil, 0, true, true},
		"kill that lies":             {sandboxfake.Fault{Op: "Kill", Effect: sandboxfake.Lie}, kill, nil, 0, true, false},
		"kill that loses its answer": {sandboxfake.Fault{Op: "Kill", Effect: sandboxfake.LoseAnswer}, kill, &sandbox.Error{Code: sandbox.CodeUnavailable}, 0, false, false},
		"another sandbox":            {sandboxfake.Fault{Op: "Kill", Effect: sandboxfake.Refuse, Sandbox: "sb-other"}, kill, nil, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake(t, sandboxfake.Options{})
				h := create(t, p)
				remove := p.Faults().Add(tt.fault)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				start := time.Now()
				err := tt.do(ctx, p, h)
				if took := time.Since(start); took != tt.took {
					t.Errorf("it took %v", took)
				}
				var e *sandbox.Error
				if errors.As(tt.want, &e) {
					if sandbox.CodeOf(err) != e.Code {
						t.Errorf("error %v", err)
					}
				} else if !errors.Is(err, tt.want) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
				remove()
				seen, err := p.Probe(t.Context(), h.SandboxID())
				if err != nil || (seen.Status == sandbox.ObservedOK) != tt.exists {
					t.Errorf("afterwards: %+v, %v", seen, err)
				}
				if _, err := h.Files().Stat(t.Context(), "/f"); (err == nil) != tt.wrote {
					t.Errorf("the file afterwards: %v", err)
				}
			})
		})
	}
}

func write(ctx context.Context, _ *sandboxfake.Provider, h sandbox.Handle) error {
	return h.Files().Write(ctx, "/f", strings.NewReader("x"), sandbox.WriteOptions{})
}

func kill(ctx context.Context, p *sandboxfake.Provider, h sandbox.Handle) error {
	_, err := p.Kill(ctx, h.SandboxID())
	return err
}

func TestFaultTimes(t *testing.T) {
	p := fake(t, sandboxfake.Options{})
	h := create(t, p)
	p.Faults().Add(sandboxfake.Fault{Op: "Files.Stat", Effect: sandboxfake.Refuse, Skip: 1, Times: 2})
	var got []bool
	for range 5 {
		_, err := h.Files().Stat(t.Context(), "/tmp")
		got = append(got, err == nil)
	}
	for i, want := range []bool{true, false, false, true, true} {
		if got[i] != want {
			t.Fatalf("succeeded: %v", got)
		}
	}
	if n := p.Faults().Calls("Files.Stat"); n != 5 {
		t.Errorf("%d calls", n)
	}
}

func TestUnknownLines(t *testing.T) {
	h := create(t, fake(t, sandboxfake.Options{}))
	r, err := h.Commands().Run(t.Context(), sandbox.Command{Line: "echo hi"})
	if err != nil || r.ExitCode != 127 || len(r.Stdout) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// The lease ends a sandbox by itself, with all that runs in it.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake(t, sandboxfake.Options{})
		s := spec()
		s.TTL = time.Minute
		h, err := p.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = h.Commands().Run(t.Context(), sandbox.Command{Line: script.Line(script.Sleep(time.Hour))})
		if !errors.Is(err, sandbox.ErrUnreachable) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if _, err := p.Connect(t.Context(), h.SandboxID()); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Connect: %v", err)
		}
	})
}

// A shell without a line takes lines from its input.
func TestInteractiveShell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ps := create(t, fake(t, sandboxfake.Options{})).Processes()
		id, err := ps.Start(t.Context(), sandbox.ProcessSpec{Key: "k", TTY: &sandbox.Size{Cols: 80, Rows: 24}})
		if err != nil {
			t.Fatal(err)
		}
		a, err := ps.Attach(t.Context(), id, sandbox.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		for _, line := range []string{script.Line(script.TTYSize()), "nonsense", script.Line(script.Exit(3))} {
			if err := a.Send(t.Context(), []byte(line+"\n")); err != nil {
				t.Fatal(err)
			}
		}
		var out strings.Builder
		for {
			f, err := a.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			out.Write(f.Data)
			if f.Exit != nil {
				if f.Exit.Code != 3 || !strings.Contains(out.String(), "24 80\r\n") {
					t.Errorf("%+v, %q", f.Exit, out.String())
				}
				return
			}
		}
	})
}
