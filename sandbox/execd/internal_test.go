package execd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const testNonce = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

func marker(channel string, run, code int) string {
	return fmt.Sprintf("\x1e%s %s %d %d\x1e", testNonce, channel, run, code)
}

// given is what frames say, with adjacent output of a channel joined.
func given(frames []sandbox.Frame) (out []string, next int64, gap bool) {
	last := ""
	for i, f := range frames {
		if i == 0 {
			next = f.Offset
		}
		gap = gap || f.Offset != next
		next = f.Offset + int64(len(f.Data))
		kind := fmt.Sprintf("%d/%d:", f.Run, f.Channel)
		switch {
		case f.Exit != nil:
			out, last = append(out, fmt.Sprintf("%d exit %d%s", f.Run, f.Exit.Code, f.Exit.Signal)), ""
		case kind == last:
			out[len(out)-1] += string(f.Data)
		default:
			out, last = append(out, kind+string(f.Data)), kind
		}
	}
	return out, next, gap
}

func copied(frames []sandbox.Frame) (out []sandbox.Frame) {
	for _, f := range frames {
		f.Data = bytes.Clone(f.Data)
		out = append(out, f)
	}
	return out
}

// Markers are found however the daemon's reads cut them, and with the other
// channel's output between their parts.
func TestMarkers(t *testing.T) {
	type chunk struct {
		channel sandbox.Channel
		text    string
	}
	o, e := marker("o", 1, 3), marker("e", 1, 3)
	for name, c := range map[string]struct {
		chunks []chunk
		want   []string
	}{
		"one after the other":  {[]chunk{{1, "out" + o}, {2, "err" + e}}, []string{"1/1:out", "1/2:err", "1 exit 3"}},
		"late output":          {[]chunk{{1, "out" + o}, {2, "err"}, {2, "more" + e}}, []string{"1/1:out", "1/2:errmore", "1 exit 3"}},
		"cut by the other":     {[]chunk{{1, "out" + o[:20]}, {2, "err"}, {1, o[20:]}, {2, e}}, []string{"1/1:out", "1/2:err", "1 exit 3"}},
		"both cut":             {[]chunk{{1, o[:5]}, {2, e[:9]}, {1, o[5:]}, {2, e[9:]}}, []string{"1 exit 3"}},
		"no marker after all":  {[]chunk{{1, "a" + o[:20]}, {2, "err"}, {1, "x"}, {1, o}, {2, e}}, []string{"1/1:a" + o[:20], "1/2:err", "1/1:x", "1 exit 3"}},
		"another's marker":     {[]chunk{{1, strings.Replace(o, "A", "B", 1) + o}, {2, e}}, []string{"1/1:" + strings.Replace(o, "A", "B", 1), "1 exit 3"}},
		"separators":           {[]chunk{{1, "\x1e\x1e"}, {1, "\x1e"}, {1, "a\x1e" + o}, {2, e}}, []string{"1/1:\x1e\x1e\x1ea\x1e", "1 exit 3"}},
		"a replay of two runs": {[]chunk{{1, "a" + e + o + "b" + marker("e", 2, 143) + marker("o", 2, 143)}}, []string{"1/1:a", "1 exit 3", "2/1:b", "2 exit 143SIGTERM"}},
	} {
		m := newMarkers(testNonce, false, 0, 1)
		var frames []sandbox.Frame
		for _, c := range c.chunks {
			frames = append(frames, copied(m.add(c.channel, []byte(c.text)))...)
		}
		got, _, gap := given(frames)
		if !cmp.Equal(got, c.want) || gap && name != "a replay of two runs" {
			t.Errorf("%s: gap %v, %s", name, gap, cmp.Diff(c.want, got))
		}
	}
	// What is held is bounded.
	m := newMarkers(testNonce, false, 0, 1)
	m.add(sandbox.Stdout, []byte("\x1e"))
	var total int
	for range 40 {
		for _, f := range m.add(sandbox.Stderr, make([]byte, 64<<10)) {
			total += len(f.Data)
		}
	}
	if total < 40*64<<10-maxHeld || m.size > maxHeld {
		t.Errorf("%d given, %d held", total, m.size)
	}
}

// FuzzMarkers cuts output and markers anywhere: all output comes, once and in
// order, and each end of a run.
func FuzzMarkers(f *testing.F) {
	f.Add([]byte("abc\x1edef"), []byte{3, 200, 7}, false)
	f.Add([]byte("\x1e\x1eABCDEF"), []byte{1}, true)
	f.Fuzz(func(t *testing.T, output, cuts []byte, terminal bool) {
		if bytes.Contains(output, []byte(testNonce)) {
			return
		}
		stream := append(bytes.Clone(output), marker("o", 1, 9)...)
		if !terminal {
			stream = append(stream, marker("e", 1, 9)...)
		}
		m := newMarkers(testNonce, terminal, 5, 1)
		var frames []sandbox.Frame
		for i := 0; len(stream) > 0; i++ {
			n := len(stream)
			if i < len(cuts) {
				n = min(n, int(cuts[i]))
			}
			frames = append(frames, copied(m.add(sandbox.Stdout, stream[:n]))...)
			stream = stream[n:]
		}
		got, next, gap := given(frames)
		want := []string{"1/1:" + string(output), "1 exit 9"}
		if len(output) == 0 {
			want = want[1:]
		}
		if !cmp.Equal(got, want) || gap || next != 5+int64(len(output)) {
			t.Errorf("gap %v, next %d: %s", gap, next, cmp.Diff(want, got))
		}
	})
}

// FuzzHostileOutput throws anything at the markers: offsets never go back.
func FuzzHostileOutput(f *testing.F) {
	f.Add([]byte("x"+marker("o", 1, 3)+marker("e", 1, 3)), byte(9))
	f.Add([]byte(marker("e", 9, 300)+marker("o", 2, -1)), byte(1))
	f.Fuzz(func(t *testing.T, b []byte, step byte) {
		m := newMarkers(testNonce, false, 0, 1)
		var at int64
		for i := 0; len(b) > 0; i++ {
			n := min(len(b), int(step)+1)
			for _, f := range m.add(sandbox.Channel(1+i%2), b[:n]) {
				if f.Offset < at {
					t.Fatalf("a frame at %d after %d", f.Offset, at)
				}
				at = f.Offset + int64(len(f.Data))
			}
			b = b[n:]
		}
		if at > m.raw {
			t.Errorf("%d bytes came of %d", at, m.raw)
		}
	})
}

// FuzzEvents: whatever a stream holds, it is read to an end, and a run has one outcome.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("{\"type\":\"init\",\"text\":\"a\"}\n\n{\"type\":\"stdout\",\"text\":\"x\"}\n\n{\"type\":\"execution_complete\"}"))
	f.Add([]byte("event: a\ndata: {\"type\":\"error\",\"error\":{\"evalue\":\"3\"}}\n\n"))
	f.Add([]byte("{\"type\":\"init\"}\n\n{\"code\":\"RUNTIME_ERROR\",\"message\":\"no\"}"))
	f.Add([]byte(": \r\n{\"type\":\"error\",\"error\":null}{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, _, err := follow(newEventReader(bytes.NewReader(b)), nil)
		if len(o.out) > maxLineOutput+1 {
			t.Errorf("%d bytes of output", len(o.out))
		}
		if o.cut != errors.Is(err, errUnknownEnd) {
			t.Errorf("cut %v, %v", o.cut, err)
		}
	})
}

// FuzzReplayFrame: an offset is never negative and the data is the rest.
func FuzzReplayFrame(f *testing.F) {
	f.Add(append(binary.BigEndian.AppendUint64([]byte{3}, 7), "data"...))
	f.Add(binary.BigEndian.AppendUint64([]byte{3}, 1<<63))
	f.Fuzz(func(t *testing.T, b []byte) {
		offset, data, err := replayFrame(b)
		if err == nil && (offset < 0 || len(data) != len(b)-9) {
			t.Errorf("%d, %d bytes of %d", offset, len(data), len(b))
		}
	})
}

// FuzzFrames: framed command output ends with an exit or an error, and no
// payload is longer than a frame may be.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x02hi\x03\x00\x00\x00\x0a{\"code\":3}"))
	f.Add([]byte("\x05\x00\x00\x00\x00\x04\x00\x00\x00\x02{}"))
	f.Add([]byte("\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		_, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		o := outputReader{r: bufio.NewReader(bytes.NewReader(b)), stop: stop}
		_, err := o.read(&out, io.Discard)
		if err == nil && !bytes.Contains(b, []byte{byte(wire.FrameExit)}) {
			t.Error("an end out of nothing")
		}
		if out.Len() > len(b) || cap(o.buf) > wire.MaxFrame {
			t.Errorf("%d bytes given, %d held, of %d", out.Len(), cap(o.buf), len(b))
		}
	})
}

// FuzzState: what a sandbox says about a process is read or refused.
func FuzzState(f *testing.F) {
	f.Add([]byte("1 running 0 77\n"))
	f.Add([]byte("99999999999999999999 exited -1 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseState(b); err == nil && (s.run < 1 || s.group < 2 || s.code < 0) {
			t.Errorf("%+v", s)
		}
	})
}

func TestWire05FollowsAnyOrderOfEvents(t *testing.T) {
	for name, c := range map[string]struct {
		stream string
		want   outcome
		id     string
		failed bool
	}{
		"as usual": {`{"type":"init","text":"i"}

{"type":"ping","text":"pong"}

{"type":"stdout","text":"a"}

{"type":"stdout","text":"\n"}

{"type":"execution_complete","execution_time":3}

{"type":"ping"}
`, outcome{out: "a\n\n"}, "i", false},
		"no init, no time, a late ping": {"{\"type\":\"stdout\",\"text\":\"a\"}\n\n{\"type\":\"execution_complete\"}\n\n{\"type\":\"error\",\"error\":{\"evalue\":\"9\"}}", outcome{out: "a\n"}, "", false},
		"data lines":                    {"id: 1\nevent: x\ndata: {\"type\":\"error\",\"error\":{\"evalue\":\"9\"}}", outcome{code: 9}, "", false},
		"an error before the ping":      {"{\"type\":\"error\",\"error\":{\"evalue\":\"fork/exec: no\"}}\n\n{\"type\":\"ping\"}\n\n", outcome{}, "", true},
		"a bare code behind an event":   {"{\"type\":\"init\",\"text\":\"i\"}\n\n{\"code\":\"RUNTIME_ERROR\",\"message\":\"no\"}", outcome{}, "i", true},
		"two objects in a line":         {`{"type":"init","text":"i"}{"code":"X","message":"no"}`, outcome{}, "i", true},
	} {
		o, id, err := follow(newEventReader(strings.NewReader(c.stream)), nil)
		if o != c.want || id != c.id || (err != nil) != c.failed || errors.Is(err, errUnknownEnd) {
			t.Errorf("%s: %+v, %q, %v", name, o, id, err)
		}
	}
}

// A line whose caller gives up is killed, since its connection's end doesn't.
func TestWire07DeletesACancelledLine(t *testing.T) {
	s := quirk.New(quirk.KeepRunning)
	t.Cleanup(CloseIdleConnections)
	t.Cleanup(s.Close)
	c := Dial(Fixed(sandbox.Endpoint{URL: s.URL(), Headers: map[string]string{wire.HeaderToken: quirk.Token}}), nil)
	if ours, err := c.speaks(t.Context(), wire.FeatureOutput); ours || err != nil {
		t.Fatalf("ours %v, %v", ours, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := (foreign{c}).line(ctx, "exec sleep 60"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if len(s.Requests("DELETE /command")) != 1 {
		t.Error("it wasn't killed")
	}
}

func TestWire20NotFoundHasSeveralForms(t *testing.T) {
	for name, c := range map[string]struct {
		no   refusal
		want bool
	}{
		"a code":           {refusal{status: http.StatusNotFound, code: wire.CodeNotFound}, true},
		"a status":         {refusal{status: http.StatusNotFound, code: wire.CodeInvalidBody}, true},
		"a text":           {refusal{status: http.StatusInternalServerError, code: wire.CodeRuntime, message: "context not found"}, true},
		"a file":           {refusal{status: http.StatusNotFound, code: wire.CodeFileNotFound}, true},
		"a bad request":    {refusal{status: http.StatusBadRequest, code: wire.CodeInvalidBody}, false},
		"a failure":        {refusal{status: http.StatusInternalServerError, code: wire.CodeRuntime, message: "no"}, false},
		"an unknown route": {refusal{status: http.StatusNotFound}, false},
	} {
		if got := c.no.missing(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFindAccount(t *testing.T) {
	users := []byte("root:x:0:0:root:/root:/bin/bash\nbad line\nann:x:1000:100::/home/ann:\n")
	groups := []byte("users:x:100:\nwheel:x:10:bob,ann\ndocker:x:99:annabel\n")
	want := &account{name: "ann", home: "/home/ann", shell: "/bin/sh", uid: 1000, gid: 100, groups: []uint32{100, 10}}
	if got := findAccount("ann", users, groups); !cmp.Equal(got, want, cmp.AllowUnexported(account{})) {
		t.Errorf("%+v", got)
	}
	if got := findAccount("an", users, groups); got != nil {
		t.Errorf("%+v", got)
	}
}

// Why a command that waited for its turn wasn't run is told as if it hadn't
// waited.
func TestFailedStart(t *testing.T) {
	for code, want := range map[string]error{
		wire.CodeSessionNotFound: sandbox.ErrIsolatedSessionNotFound,
		wire.CodeTooMany:         sandbox.Errorf(sandbox.CodeCapacity, "no"),
		wire.CodeStopping:        sandbox.ErrUnreachable,
		wire.CodeStartFailed:     sandbox.Errorf(sandbox.CodeInvalid, "no"),
	} {
		body, err := json.Marshal(wire.Error{Code: code, Message: "no"})
		if err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, wire.FrameHeaderSize)
		wire.PutFrameHeader(frame, wire.FrameFailed, len(body))
		o := outputReader{r: bufio.NewReader(bytes.NewReader(append(frame, body...)))}
		if _, err := o.read(nil, nil); !errors.Is(err, want) && (sandbox.CodeOf(err) != sandbox.CodeOf(want) || sandbox.CodeOf(want) == "") {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// A foreign execd answers a run in an isolated session with nothing, not even
// headers, before the run says something. That is no sign that it is lost.
func TestForeignIsolatedRunThatIsQuiet(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/version":
			http.NotFound(w, r)
		case strings.HasSuffix(r.URL.Path, "/run"):
			select {
			case <-time.After(300 * time.Millisecond): // longer than others may take
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, `{"type":"execution_complete","timestamp":1}`+"\n\n")
		default:
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"session_id":"1"}`)
		}
	}))
	defer s.Close()
	defer CloseIdleConnections()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := Dial(Fixed(sandbox.Endpoint{URL: u}), nil)
	i := Isolated(func(context.Context, string) (*Conn, error) { return c, nil })
	session, err := i.OpenIsolatedSession(t.Context(), "s", sandbox.IsolatedSessionSpec{Workspace: "/w"})
	if err != nil {
		t.Fatal(err)
	}
	impatient := shared.Transport.(*http.Transport).Clone()
	impatient.ResponseHeaderTimeout = 50 * time.Millisecond
	defer impatient.CloseIdleConnections()
	c.client = &http.Client{Transport: impatient}
	if r, err := session.Commands().Run(t.Context(), sandbox.Command{Line: "sleep 100"}); err != nil || r.ExitCode != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A daemon that takes a request for a WebSocket and says nothing more is given up,
// also by a caller with all the time in the world: whoever keeps an attachment
// would never try again.
func TestSilentHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs) //nolint:errcheck // it ends with ours
			return ours, nil
		}}}
		c := Dial(Fixed(sandbox.Endpoint{URL: &url.URL{Scheme: "http", Host: "daemon"}}), client)
		begun := time.Now()
		if _, err := c.socket(t.Context(), "/pty/p/ws", "", wire.ProcessProtocol); !errors.Is(err, sandbox.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begun); took != answerTime {
			t.Errorf("given up after %v", took)
		}
	})
}
