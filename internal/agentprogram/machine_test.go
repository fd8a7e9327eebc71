package agentprogram

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// TestTranscripts plays testdata/*.txt. A line "$ ..." is a call, "< ..." a line
// of the program; the lines after it are what the machine must give:
// "> ..." bytes for stdin, "= type data" events, "! ..." the rest of the result.
// Each step is also taken by a machine restored from the state before it, twice,
// and must give the same.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("transcript differs (-want +got):\n%s", diff)
			}
		})
	}
}

func play(t *testing.T, script string) string {
	t.Helper()
	m, err := New(ShellID)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for l := range strings.Lines(script) {
		l = strings.TrimSuffix(l, "\n")
		if !strings.HasPrefix(l, "$ ") && !strings.HasPrefix(l, "< ") {
			if l == "" || strings.HasPrefix(l, "#") {
				fmt.Fprintln(&out, l)
			}
			continue
		}
		fmt.Fprintln(&out, l)
		before := state(t, m)
		got := step(t, m, l)
		out.WriteString(got)
		for range 2 {
			again, err := Restore(ShellID, before)
			if err != nil {
				t.Fatalf("%s: restore: %v", l, err)
			}
			if diff := cmp.Diff(got, step(t, again, l)); diff != "" {
				t.Errorf("%s: a restored machine differs (-was +restored):\n%s", l, diff)
			}
			if diff := cmp.Diff(string(state(t, m)), string(state(t, again))); diff != "" {
				t.Errorf("%s: its state differs (-was +restored):\n%s", l, diff)
			}
		}
	}
	return out.String()
}

func step(t *testing.T, m Machine, l string) string {
	t.Helper()
	var r Result
	var err error
	sign, rest, _ := strings.Cut(l, " ")
	if sign == "<" {
		r, err = m.Feed([]byte(rest))
	} else {
		verb, args, _ := strings.Cut(rest, " ")
		a, b, _ := strings.Cut(args, " ")
		switch verb {
		case "open":
			r.Out, err = m.Open(OpenOptions{Cwd: a, NativeSession: b, Mode: ModeRun})
		case "prompt":
			r.Out, err = m.Prompt(a, b)
		case "cancel":
			r.Out = m.Cancel()
		case "exit":
			code, aerr := strconv.Atoi(a)
			if aerr != nil {
				t.Fatal(aerr)
			}
			r = m.Exited(sandbox.Exit{Code: code, Signal: b})
		default:
			t.Fatalf("unknown verb %q", verb)
		}
	}
	var out strings.Builder
	if err != nil {
		fmt.Fprintf(&out, "! error %v\n", err)
	}
	if r.Skipped {
		fmt.Fprintln(&out, "! skipped")
	}
	for _, e := range r.Events {
		fmt.Fprintf(&out, "= %s %s\n", e.Type, encode(t, e.Data))
	}
	for o := range bytes.Lines(r.Out) {
		if !json.Valid(o) || !bytes.HasSuffix(o, []byte("\n")) {
			t.Errorf("%s: not a JSON line: %q", l, o)
		}
		fmt.Fprintf(&out, "> %s", o)
	}
	if r.NativeSession != "" {
		fmt.Fprintf(&out, "! session %s\n", r.NativeSession)
	}
	if r.TurnEnded != nil {
		fmt.Fprintf(&out, "! turn ended %s\n", encode(t, r.TurnEnded))
	}
	if r.Broken != nil {
		fmt.Fprintf(&out, "! broken %s\n", encode(t, r.Broken))
	}
	if r.Ready {
		fmt.Fprintln(&out, "! ready")
	}
	if r.Ready && !m.Ready() {
		t.Errorf("%s: the result is ready, the machine isn't", l)
	}
	return out.String()
}

func state(t *testing.T, m Machine) []byte {
	t.Helper()
	s, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ready returns a machine with a session open and, with turn, a turn running.
func ready(t *testing.T, turn string) Machine {
	t.Helper()
	m := newACP()
	if _, err := m.Open(OpenOptions{Cwd: "/workspace"}); err != nil {
		t.Fatal(err)
	}
	for _, l := range []string{`{"id":1,"result":{"protocolVersion":1}}`, `{"id":2,"result":{"sessionId":"s"}}`} {
		if _, err := m.Feed([]byte(l)); err != nil {
			t.Fatal(err)
		}
	}
	if turn != "" {
		if _, err := m.Prompt(turn, "x"); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func sessionUpdate(u string) []byte {
	return []byte(`{"method":"session/update","params":{"sessionId":"s","update":` + u + `}}`)
}

func TestLongLines(t *testing.T) {
	m := ready(t, "t1")
	for _, size := range []int{1_200_000, 12_000_000} {
		text := strings.Repeat("é", size/2)
		r, err := m.Feed(sessionUpdate(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + text + `"}}`))
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, e := range r.Events {
			piece := e.Data.(Text).Text
			if len(piece) > maxPiece {
				t.Errorf("a delta has %d bytes", len(piece))
			}
			got.WriteString(piece)
		}
		if got.String() != text {
			t.Errorf("%d bytes of text came out as %d other ones", len(text), got.Len())
		}
	}
	if _, err := m.Feed(bytes.Repeat([]byte(" "), MaxLine+1)); !errors.Is(err, ErrLineTooLong) {
		t.Errorf("a line over the limit: error %v", err)
	}
	if m.Turn() != "t1" {
		t.Errorf("the turn is gone after a line over the limit")
	}
}

// TestBounds feeds what a broken or hostile program may send, and expects small
// events and a small state.
func TestBounds(t *testing.T) {
	m := ready(t, "t1")
	huge := strings.Repeat("x", 2<<20)
	for i := range 3 * maxTools {
		r, err := m.Feed(sessionUpdate(fmt.Sprintf(`{"sessionUpdate":"tool_call","toolCallId":"c%d","title":%q,"rawInput":{"a":%q},"content":[{"type":"content","content":{"type":"text","text":%q}}]}`,
			i, huge[:i%2*len(huge)], huge[:i%2*len(huge)], huge[:i%2*len(huge)])))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			if n := len(encode(t, e)); n > maxReplace+maxInput {
				t.Fatalf("event %s has %d bytes", e.Type, n)
			}
		}
		if i == 3 {
			huge = huge[:200] // the rest is about the number of calls
		}
	}
	if n := len(state(t, m)); n > 256<<10 {
		t.Errorf("the state has %d bytes", n)
	}
}

func TestRestoreRefusals(t *testing.T) {
	for _, s := range []string{``, `[]`, `{}`, `{"v":2,"phase":"ready"}`, `{"v":1,"phase":"dreaming"}`} {
		if _, err := Restore(ShellID, []byte(s)); err == nil {
			t.Errorf("state %q was restored", s)
		}
	}
	if _, err := Restore("nothing", []byte(`{"v":1,"phase":"ready"}`)); err == nil {
		t.Error("an unknown program was restored")
	}
	if _, err := New("nothing"); err == nil {
		t.Error("an unknown program was made")
	}
	if _, err := newACP().Open(OpenOptions{Mode: "ask"}); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

func TestCoalesce(t *testing.T) {
	in := []Event{
		{EventTextDelta, Text{"a"}}, {EventTextDelta, Text{"b"}}, {EventThinkingDelta, Text{"c"}}, {EventTextDelta, Text{"d"}},
		{EventToolOutput, ToolOutput{"1", OutputReplace, "x"}}, {EventToolOutput, ToolOutput{"1", OutputAppend, "y"}},
		{EventToolOutput, ToolOutput{"2", OutputAppend, "z"}}, {EventToolOutput, ToolOutput{"2", OutputReplace, "w"}},
		{EventTextDone, None{}}, {EventTextDone, None{}},
	}
	want := []Event{
		{EventTextDelta, Text{"ab"}}, {EventThinkingDelta, Text{"c"}}, {EventTextDelta, Text{"d"}},
		{EventToolOutput, ToolOutput{"1", OutputReplace, "xy"}},
		{EventToolOutput, ToolOutput{"2", OutputAppend, "z"}}, {EventToolOutput, ToolOutput{"2", OutputReplace, "w"}},
		{EventTextDone, None{}}, {EventTextDone, None{}},
	}
	if diff := cmp.Diff(want, Coalesce(in)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzFeed(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		script, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var lines []string
		for l := range strings.Lines(string(script)) {
			if rest, ok := strings.CutPrefix(l, "< "); ok {
				lines = append(lines, rest)
			}
		}
		f.Add([]byte(strings.Join(lines, "")))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		m := newACP()
		if _, err := m.Open(OpenOptions{Cwd: "/workspace", NativeSession: "s"}); err != nil {
			t.Fatal(err)
		}
		n := 0
		for l := range bytes.Lines(script) {
			l = bytes.TrimSuffix(l, []byte("\n"))
			if m.Ready() {
				n++
				if _, err := m.Prompt(fmt.Sprint("t", n), "x"); err != nil {
					t.Fatal(err)
				}
			}
			again, err := Restore(ShellID, state(t, m))
			if err != nil {
				t.Fatal(err)
			}
			a, err := m.Feed(l)
			if err != nil {
				t.Fatal(err)
			}
			b, err := again.Feed(l)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(a, b); diff != "" {
				t.Fatalf("a restored machine differs:\n%s", diff)
			}
			for o := range bytes.Lines(a.Out) {
				if !json.Valid(o) || o[len(o)-1] != '\n' {
					t.Fatalf("not a JSON line: %q", o)
				}
			}
			for _, e := range a.Events {
				if _, err := json.Marshal(e); err != nil {
					t.Fatalf("event %s: %v", e.Type, err)
				}
			}
			if (a.TurnEnded != nil) && m.Turn() != "" {
				t.Fatal("the turn ended and runs")
			}
		}
		m.Exited(sandbox.Exit{Code: 1})
		if m.Turn() != "" || m.Ready() {
			t.Fatal("a turn runs in a process that ended")
		}
	})
}
