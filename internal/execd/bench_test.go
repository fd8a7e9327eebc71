package execd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"testing"

	"github.com/creack/pty"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
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

// BenchmarkTerminalOutput is BenchmarkProcessOutput in a terminal.
func BenchmarkTerminalOutput(b *testing.B) {
	d := start(b)
	b.SetBytes(1)
	s := process(b, d, sandbox.ProcessSpec{Line: fmt.Sprintf("stty raw; head -c %d /dev/zero", b.N), TTY: &sandbox.Size{Cols: 80, Rows: 24}})
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

// BenchmarkRawPipe is the least that output takes: a reader of the pipe.
func BenchmarkRawPipe(b *testing.B) {
	b.SetBytes(1)
	cmd := exec.Command("bash", "-c", fmt.Sprintf("head -c %d /dev/zero", b.N))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	drain(b, out)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRawTerminal is the least that a terminal's output takes.
func BenchmarkRawTerminal(b *testing.B) {
	b.SetBytes(1)
	cmd := exec.Command("bash", "-c", fmt.Sprintf("stty raw; head -c %d /dev/zero", b.N))
	master, err := pty.Start(cmd)
	if err != nil {
		b.Fatal(err)
	}
	defer master.Close()
	drain(b, master)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

func drain(b *testing.B, out io.Reader) {
	buf := make([]byte, 64<<10)
	got := 0
	for err := error(nil); err == nil; {
		var n int
		n, err = out.Read(buf)
		got += n
	}
	if got != b.N {
		b.Fatalf("%d bytes of %d", got, b.N)
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

// BenchmarkEventLines measures short lines through the older protocol; b.N is lines.
func BenchmarkEventLines(b *testing.B) {
	d := start(b)
	resp := post(b, d, "/command", fmt.Sprintf(`{"command":"seq %d"}`, b.N), nil)
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSessionRun measures `true` in a session that carries an environment.
func BenchmarkSessionRun(b *testing.B) {
	d := start(b)
	resp := post(b, d, "/session", "", nil)
	var made wire.ProcessCreated
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		resp := post(b, d, "/session/"+made.SessionID+"/run", `{"command":"true"}`, nil)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

func BenchmarkIsolatedRun(b *testing.B) {
	p := startIsolated(b)
	s := p.session(b)
	for b.Loop() {
		if _, err := s.Commands().Run(b.Context(), sandbox.Command{Line: "true"}); err != nil {
			b.Fatal(err)
		}
	}
}
