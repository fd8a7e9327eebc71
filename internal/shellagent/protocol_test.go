package shellagent_test

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/google/go-cmp/cmp"
)

func TestEnd(t *testing.T) {
	t.Run("of stdin lets the command end", func(t *testing.T) {
		dir := t.TempDir()
		a := start(t, options{})
		c := open(t, a, dir, "")
		c.prompt("sleep .3; echo ok >file; echo told")
		a.stdin.Close()
		if r := c.wait(); r.output != "told\n" || readFile(t, filepath.Join(dir, "file")) != "ok\n" {
			t.Errorf("got %q", r.output)
		}
		if a.exit(); a.cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("the program ended with %v", a.cmd.ProcessState)
		}
	})
	t.Run("by a signal stops the command", func(t *testing.T) {
		word := fmt.Sprintf("2000.%d", os.Getpid())
		a := start(t, options{})
		c := open(t, a, "/", "")
		c.prompt("setsid sleep " + word + " & sleep " + word)
		eventually(t, "it sleeps", func() bool { return living(t, word) >= 2 })
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if r := c.wait(); r.ended[0].Status != agentprogram.ToolFailed {
			t.Errorf("the tool ended as %+v", r.ended)
		}
		a.exit()
		if n := living(t, word); n > 0 {
			t.Errorf("%d processes are left", n)
		}
	})
	t.Run("of the reader stops the command", func(t *testing.T) {
		word := fmt.Sprintf("3000.%d", os.Getpid())
		a := start(t, options{})
		c := open(t, a, "/", "")
		c.prompt("sleep " + word + " & while :; do echo; sleep .1; done")
		eventually(t, "it sleeps", func() bool { return living(t, word) > 0 })
		a.out.Close()
		a.exit()
		if n := living(t, word); n > 0 || a.cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%d processes are left, the program ended with %v", n, a.cmd.ProcessState)
		}
	})
	t.Run("by a signal when nobody reads", func(t *testing.T) {
		home := t.TempDir()
		a := startUnread(t, options{home: home})
		a.write([]byte(`{"id":1,"method":"session/new","params":{"cwd":"/"}}` + "\n"))
		eventually(t, "the program serves", func() bool { return exists(filepath.Join(home, ".local/state/astrabox-shell")) })
		a.write([]byte(strings.Repeat(`{"id":1,"method":"initialize"}`+"\n", 2000)))
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		state, err := a.cmd.Process.Wait()
		if err != nil || !state.Exited() {
			t.Errorf("the program ended with %v, %v", state, err)
		}
	})
}

// TestOtherClients: load replays, and a client that doesn't know terminal output
// gets content that replaces.
func TestOtherClients(t *testing.T) {
	home := t.TempDir()
	a := start(t, options{home: home})
	answer, _ := a.call(1, "initialize", map[string]any{"protocolVersion": 1})
	if answer.Result["protocolVersion"] != 1.0 {
		t.Errorf("initialize gave %+v", answer)
	}
	answer, _ = a.call(2, "session/new", map[string]any{"cwd": "/", "mcpServers": []any{}})
	session := answer.Result["sessionId"]
	prompt := func(text string) map[string]any {
		return map[string]any{"sessionId": session, "prompt": []any{map[string]any{"type": "text", "text": text}}}
	}
	_, updates := a.call(3, "session/prompt", prompt("echo one; sleep .2; echo two; exit 4"))
	var texts []string
	for _, u := range updates {
		if content, ok := u["content"].([]any); ok {
			texts = append(texts, content[0].(map[string]any)["content"].(map[string]any)["text"].(string))
		}
	}
	if diff := cmp.Diff([]string{"one\n", "one\ntwo\n"}, texts); diff != "" {
		t.Errorf("contents (-want +got):\n%s", diff)
	}
	a.stdin.Close()
	a.exit()

	a = start(t, options{home: home})
	a.call(1, "initialize", map[string]any{"protocolVersion": 1})
	answer, updates = a.call(2, "session/load", map[string]any{"sessionId": session, "cwd": "/", "mcpServers": []any{}})
	if answer.Error != nil || len(updates) != 2 || updates[0]["sessionUpdate"] != "user_message_chunk" || updates[1]["status"] != "failed" {
		t.Errorf("load gave %+v after %v", answer, updates)
	}
}

func TestRefusals(t *testing.T) {
	a := start(t, options{})
	answer, _ := a.call(1, "session/new", map[string]any{"cwd": "/", "mcpServers": []any{}})
	session := answer.Result["sessionId"]
	text := map[string]any{"type": "text", "text": "a\x00b"}
	for i, c := range []struct {
		method string
		params any
		code   int
	}{
		{"nonsense", nil, -32601},
		{"session/new", map[string]any{"cwd": "relative"}, -32602},
		{"session/new", []int{1}, -32602},
		{"session/load", map[string]any{"cwd": "/", "sessionId": "sh_none"}, -32002},
		{"session/resume", map[string]any{"cwd": "/", "sessionId": "../x"}, -32002},
		{"session/prompt", map[string]any{"sessionId": "other"}, -32002},
		{"session/prompt", map[string]any{"sessionId": session, "prompt": []any{text}}, -32602},
		{"session/prompt", map[string]any{"sessionId": session, "prompt": []any{map[string]any{"type": "image"}}}, -32602},
	} {
		answer, _ := a.call(10+i, c.method, c.params)
		if answer.Error == nil || answer.Error.Code != c.code {
			t.Errorf("%s %v gave %+v", c.method, c.params, answer)
		}
	}
	a.write([]byte("not JSON\n{\"id\":77,\"result\":{}}\n[]\n"))
	for range 2 {
		if l := a.line(); !strings.Contains(l, "-32700") || !strings.Contains(l, `"id":null`) {
			t.Errorf("got %s", l)
		}
	}
	a.write([]byte(`{"jsonrpc":"2.0","id":"p","method":"session/prompt","params":{"sessionId":"` + session.(string) + `","prompt":[{"type":"text","text":"sleep 1000"}]}}` + "\n"))
	for _, method := range []string{"session/prompt", "session/new"} {
		answer, _ := a.call(30, method, map[string]any{"sessionId": session, "cwd": "/"})
		if answer.Error == nil || answer.Error.Code != -32600 {
			t.Errorf("%s during a command gave %+v", method, answer)
		}
	}
}

// TestBinary: it is copied into every sandbox, whatever libraries that has.
func TestBinary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shellagent")
	if err := build(path); err != nil { // as it is shipped
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 3_000_000 {
		t.Errorf("it has %d bytes", info.Size())
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it isn't static: it has %v", p.Type)
		}
	}
}
