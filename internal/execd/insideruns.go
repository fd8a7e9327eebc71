package execd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/shell"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Runs of an isolated session in the background.

const (
	// maxRuns bounds how many are remembered; a new one takes the place of the
	// oldest that has ended.
	maxRuns = 32
	// maxRunLog bounds the output kept of each.
	maxRunLog = 16 << 20
)

// aside is a run in the background.
type aside struct {
	id      string
	started time.Time
	log     *spool

	mu       sync.Mutex
	finished time.Time
	result   command.Result
}

func (a *aside) ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.finished.IsZero()
}

type runs struct {
	logs budget

	mu   sync.Mutex
	list []*aside // oldest first
}

// add makes room and gives a new run; nil: maxRuns are running.
func (rs *runs) add(log *spool) *aside {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := 0; len(rs.list) >= maxRuns; i++ {
		if i == len(rs.list) {
			return nil
		}
		if rs.list[i].ended() {
			rs.list[i].log.close()
			rs.list = append(rs.list[:i], rs.list[i+1:]...)
			break
		}
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	a := &aside{id: hex.EncodeToString(b[:]), started: time.Now(), log: log}
	rs.list = append(rs.list, a)
	return a
}

func (rs *runs) remove(a *aside) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := range rs.list {
		if rs.list[i] == a {
			rs.list = append(rs.list[:i], rs.list[i+1:]...)
			break
		}
	}
	a.log.close()
}

func (rs *runs) get(id string) *aside {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, a := range rs.list {
		if a.id == id {
			return a
		}
	}
	return nil
}

// runAside starts a run in the background and answers when it has started.
func (in *inside) runAside(w http.ResponseWriter, run shell.Run) {
	log, err := newSpool(&in.runs.logs)
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, err.Error())
		return
	}
	log.max = maxRunLog
	a := in.runs.add(log)
	if a == nil {
		log.close()
		refuse(w, http.StatusTooManyRequests, wire.CodeTooMany, "too many background runs of this session are running")
		return
	}
	run.Leave, run.Aside = true, true
	run.Output = func(_ byte, b []byte) bool {
		log.write(b)
		return true
	}
	started := make(chan error, 1)
	run.Started = func() { started <- nil }
	in.server.background.Go(func() {
		result, err := in.server.sessions.Run(context.Background(), in.shell, run)
		if err != nil {
			started <- err
			return
		}
		a.mu.Lock()
		a.result, a.finished = result, time.Now()
		a.mu.Unlock()
	})
	if err := <-started; err != nil {
		in.runs.remove(a)
		status, e, _ := runFailure(err)
		reply(w, status, e)
		return
	}
	reply(w, http.StatusAccepted, runCreated{SessionID: in.id, RunID: a.id, Started: a.started})
}

// runCreated is the answer to a run in the background.
type runCreated struct {
	SessionID string    `json:"session_id"`
	RunID     string    `json:"run_id"`
	Started   time.Time `json:"started_at"`
}

// runState is the answer of GET …/runs/{id}.
type runState struct {
	SessionID string     `json:"session_id"`
	RunID     string     `json:"run_id"`
	Running   bool       `json:"running"`
	ExitCode  *int       `json:"exit_code,omitempty"` // -1 for a signal
	Error     string     `json:"error,omitempty"`
	TimedOut  bool       `json:"timed_out,omitempty"`
	Started   time.Time  `json:"started_at"`
	Finished  *time.Time `json:"finished_at,omitempty"`
}

func (in *inside) aside(w http.ResponseWriter, r *http.Request) *aside {
	a := in.runs.get(r.PathValue("id"))
	if a == nil {
		refuse(w, http.StatusNotFound, wire.CodeNotFound, "no such background run")
	}
	return a
}

func (in *inside) runState(w http.ResponseWriter, r *http.Request) {
	a := in.aside(w, r)
	if a == nil {
		return
	}
	a.mu.Lock()
	st := runState{SessionID: in.id, RunID: a.id, Running: a.finished.IsZero(), Started: a.started}
	if !st.Running {
		finished, code := a.finished, a.result.Code
		if a.result.Exit != (child.Exit{}) {
			_, trace := exitText(a.result, 0)
			st.Error = trace[0]
		}
		if a.result.Signal != "" {
			code = -1
		}
		st.Finished, st.ExitCode, st.TimedOut = &finished, &code, a.result.TimedOut
	}
	a.mu.Unlock()
	reply(w, http.StatusOK, st)
}

func (in *inside) runLog(w http.ResponseWriter, r *http.Request) {
	a := in.aside(w, r)
	if a == nil {
		return
	}
	if !logPage(w, r, a.log, wire.HeaderIsolatedCursor) {
		refuse(w, http.StatusNotFound, wire.CodeNotFound, "no such background run")
	}
}
