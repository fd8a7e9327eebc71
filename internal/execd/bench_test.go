package execd_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
)

// BenchmarkCommand measures `true` from the request to its exit; compare it
// with BenchmarkBash, the least that it can take.
func BenchmarkCommand(b *testing.B) {
	d := start(b)
	for b.Loop() {
		if res, err := client.Commands(d.conn).Run(b.Context(), sandbox.Command{Line: "true"}); err != nil || res.ExitCode != 0 {
			b.Fatal(res, err)
		}
	}
}

func BenchmarkBash(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("bash", "-c", "true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommandOutput measures how fast output comes through a command.
func BenchmarkCommandOutput(b *testing.B) {
	d := start(b)
	b.SetBytes(1)
	if _, err := client.Commands(d.conn).Stream(b.Context(), sandbox.Command{Line: fmt.Sprintf("head -c %d /dev/zero", b.N)}, io.Discard, nil); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkProcessOutput measures how fast output comes through a process.
func BenchmarkProcessOutput(b *testing.B) {
	d := start(b)
	b.SetBytes(1)
	s := process(b, d, sandbox.ProcessSpec{Line: fmt.Sprintf("head -c %d /dev/zero", b.N)})
	a := s.attach(sandbox.AttachOptions{})
	for {
		_, err := a.Recv(b.Context())
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEcho measures a byte's way through stdin, `cat` and back.
func BenchmarkEcho(b *testing.B) {
	d := start(b)
	s := process(b, d, sandbox.ProcessSpec{Line: "cat"})
	a := s.attach(sandbox.AttachOptions{})
	for b.Loop() {
		if err := a.Send(b.Context(), []byte("x")); err != nil {
			b.Fatal(err)
		}
		if _, err := a.Recv(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
