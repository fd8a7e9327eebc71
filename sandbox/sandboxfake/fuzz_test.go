package sandboxfake

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func fuzzSpec() sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: "i", OwnerID: "o", AssignmentID: "a", Image: "img",
		ResourceLimits: map[string]string{"cpu": "1"}, ResourceRequests: map[string]string{"cpu": "1"},
	}
}

// No path and no link leads out of a root.
func FuzzBeneath(f *testing.F) {
	for _, seed := range [][2]string{
		{"/root2/../out", "/out"}, {"/tmp/r/l", "/out/f"}, {"/tmp/r/l/f", "../../out"}, {"/tmp/r//./l/../l/f", "/tmp/r/../../out"},
		{"/tmp/r/d/l", ".."}, {"/tmp/r/l/l/l", "l"}, {"/tmp/r/l/r/f", "/tmp"}, {"/tmp/r/l/", "/tmp/r"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, path, target string) {
		p := New(Options{})
		defer p.Close()
		h, err := p.Create(t.Context(), fuzzSpec())
		if err != nil {
			t.Fatal(err)
		}
		free := h.Files()
		for _, dir := range []string{"/out", "/tmp/r/d"} {
			if err := free.MakeDir(t.Context(), dir, sandbox.DirOptions{Parents: true}); err != nil {
				t.Fatal(err)
			}
		}
		if err := free.Write(t.Context(), "/out/f", strings.NewReader("secret"), sandbox.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if strings.IndexByte(target, 0) < 0 && target != "" {
			for _, l := range []string{"/tmp/r/l", "/tmp/r/d/l"} {
				if _, err := h.Commands().Run(t.Context(), sandbox.Command{Line: script.Line(script.Link(target, l))}); err != nil {
					t.Fatal(err)
				}
			}
		}
		c := free.Beneath("/tmp/r")
		if r, err := c.Open(t.Context(), path, 0, -1); err == nil {
			if b, err := io.ReadAll(r); err != nil || string(b) == "secret" {
				t.Errorf("%q with a link to %q: %q, %v", path, target, b, err)
			}
		}
		for _, err := range []error{
			c.Write(t.Context(), path, strings.NewReader("x"), sandbox.WriteOptions{}), c.SetAttr(t.Context(), path, sandbox.Attr{Mode: sandbox.Mode(0)}),
			c.Rename(t.Context(), path, "/tmp/r/moved"), c.MakeDir(t.Context(), path, sandbox.DirOptions{Parents: true}),
			c.Remove(t.Context(), path), c.RemoveAll(t.Context(), path),
		} {
			if err != nil && !errors.Is(err, sandbox.ErrPathRejected) && !errors.Is(err, sandbox.ErrPathNotFound) {
				t.Errorf("%q with a link to %q: %v", path, target, err)
			}
		}
		i, err := free.Stat(t.Context(), "/out/f")
		if err != nil || i.Mode != 0o644 || i.Size != 6 {
			t.Errorf("%q with a link to %q: what lies outside is now %+v, %v", path, target, i, err)
		}
		seq, err := free.List(t.Context(), "/out", 2)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for range seq { //nolint:errcheck // counted
			n++
		}
		if n != 1 {
			t.Errorf("%q with a link to %q: %d entries outside", path, target, n)
		}
	})
}

// Whatever was written in whatever pieces, an attachment gives exactly the
// bytes from its offset on, or says that they aren't held.
func FuzzReplay(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 255, 9}, int64(0))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255}, int64(5000))
	f.Add([]byte{}, int64(1))
	f.Fuzz(func(t *testing.T, writes []byte, from int64) {
		fake := New(Options{})
		defer fake.Close()
		p := &process{
			m: fake.machine(fuzzSpec()), spec: sandbox.ProcessSpec{Buffer: minBuffer}, changed: make(chan struct{}), watchers: map[*attachment]bool{},
		}
		var all []byte
		run := 1
		for i, n := range writes {
			if n%16 == 15 { // a run ends
				p.ends = append(p.ends, runEnd{p.next, run, sandbox.Exit{Code: run}})
				run++
			}
			b := script.BigOutput(int64(i), int64(i)+10*int64(n))
			p.write(run, sandbox.Channel(1+n%2), b, nil)
			all = append(all, b...)
		}
		p.run, p.exit = run, &sandbox.Exit{}
		if p.next != int64(len(all)) || p.next-p.oldest > minBuffer || p.oldest != max(0, p.next-minBuffer) {
			t.Fatalf("%d bytes, held from %d to %d", len(all), p.oldest, p.next)
		}
		a, err := p.attach(sandbox.AttachOptions{From: from, NoStart: true})
		var gap *sandbox.ReplayGapError
		switch {
		case from < 0 || from > p.next:
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("from %d of %d: %v", from, p.next, err)
			}
			return
		case from < p.oldest:
			if !errors.As(err, &gap) || gap.Oldest != p.oldest {
				t.Errorf("from %d, held from %d: %v", from, p.oldest, err)
			}
			return
		case err != nil:
			t.Fatal(err)
		}
		at, last := from, 0
		for {
			f, err := a.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || f == nil || f.Offset != at || f.Run < last || f.Exit == nil && string(f.Data) != string(all[at:at+int64(len(f.Data))]) {
				t.Fatalf("at %d: %+v, %v", at, f, err)
			}
			at, last = at+int64(len(f.Data)), f.Run
		}
		if at != p.next {
			t.Errorf("the replay ends at %d of %d", at, p.next)
		}
	})
}

var (
	_ sandbox.Provider         = (*Provider)(nil)
	_ sandbox.Pauser           = (*Provider)(nil)
	_ sandbox.AssignmentFinder = (*Provider)(nil)
	_ sandbox.Inventory        = (*Provider)(nil)
	_ sandbox.Mover            = (*files)(nil)
)
