package execd

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/shell"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// quietAfter checks that nothing is written any more, for an hour.
func quietAfter(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	had := w.Body.Len()
	time.Sleep(time.Hour)
	synctest.Wait()
	if got := w.Body.Len(); got != had {
		t.Errorf("%q was written after the end", w.Body.Bytes()[had:])
	}
}

// A command that is quiet for an hour is heard of all the time, and not any
// more once its answer has ended: the response may by then be another's.
func TestSignsOfLife(t *testing.T) {
	t.Run("events", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := httptest.NewRecorder()
			e := newEventWriter(w)
			e.begin("id")
			time.Sleep(time.Hour + time.Millisecond)
			synctest.Wait()
			if got, want := strings.Count(w.Body.String(), `"ping"`), int(time.Hour/eventPing)+1; got != want {
				t.Errorf("%d pings in an hour, want %d", got, want)
			}
			e.end(command.Result{}, 0)
			e.finish()
			e.sendPing() // one that was on its way
			quietAfter(t, w)
			if !bytes.HasSuffix(w.Body.Bytes(), []byte("}\n\n")) || strings.Count(w.Body.String(), "execution_complete") != 1 {
				t.Errorf("the answer ends with %q", w.Body.Bytes()[w.Body.Len()-80:])
			}
		})
	})
	t.Run("frames", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := httptest.NewRecorder()
			f := newFrameWriter(w)
			f.begin()
			time.Sleep(time.Hour + time.Millisecond)
			synctest.Wait()
			if got, want := w.Body.Len(), int(time.Hour/keepAlive)*wire.FrameHeaderSize; got != want {
				t.Errorf("%d bytes in an hour, want %d", got, want)
			}
			if kind, n := wire.FrameHeader(w.Body.Bytes()); kind != wire.FrameKeepAlive || n != 0 {
				t.Errorf("a frame of type %d with %d bytes", kind, n)
			}
			f.last(wire.FrameExit, wire.CommandExit{})
			f.finish()
			f.keepAlive() // one that was on its way
			quietAfter(t, w)
		})
	})
	t.Run("a run that waits for its turn", func(t *testing.T) {
		for name, c := range map[string]struct {
			waits time.Duration
			fails bool
			code  int
			types []wire.FrameType
		}{
			"not at all":       {code: 200, types: []wire.FrameType{wire.FrameExit}},
			"for long":         {waits: time.Minute + time.Second, code: 200, types: []wire.FrameType{wire.FrameKeepAlive, wire.FrameKeepAlive, wire.FrameKeepAlive, wire.FrameKeepAlive, wire.FrameExit}},
			"and is refused":   {fails: true, code: 404},
			"and then refused": {waits: 20 * time.Second, fails: true, code: 200, types: []wire.FrameType{wire.FrameKeepAlive, wire.FrameFailed}},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := httptest.NewRecorder()
					f := newFrameWriter(w)
					f.wait()
					time.Sleep(c.waits)
					synctest.Wait()
					if c.fails {
						f.fail(runFailure(shell.ErrNotFound))
					} else {
						f.beginSoon()
						f.last(wire.FrameExit, wire.CommandExit{})
					}
					f.finish()
					quietAfter(t, w)
					if w.Code != c.code {
						t.Errorf("status %d", w.Code)
					}
					var types []wire.FrameType
					for b := w.Body.Bytes(); c.code == 200 && len(b) > 0; {
						kind, n := wire.FrameHeader(b)
						types, b = append(types, kind), b[wire.FrameHeaderSize+int(n):]
					}
					if d := cmp.Diff(c.types, types); d != "" {
						t.Error(d)
					}
				})
			})
		}
	})
	t.Run("a client that is gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &broken{ResponseRecorder: httptest.NewRecorder()}
			e := newEventWriter(w)
			e.begin("id")
			defer e.finish()
			time.Sleep(time.Hour)
			synctest.Wait()
			if w.writes != 1 {
				t.Errorf("%d attempts to write to it", w.writes)
			}
			if e.output(wireStdout, []byte("x\n")) {
				t.Error("its output is still wanted")
			}
		})
	})
}

// broken fails every write.
type broken struct {
	*httptest.ResponseRecorder
	writes int
}

func (b *broken) Write([]byte) (int, error) {
	b.writes++
	return 0, http.ErrHandlerTimeout
}
