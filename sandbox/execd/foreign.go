package execd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// foreignDir is where scripts and what processes are known by live in a
	// sandbox. Only root can write there, so nobody can be there first.
	foreignDir = "/run/astrabox-execd"
	// foreignRing is how much output a foreign execd keeps of a process.
	foreignRing = 1 << 20
	// killTime bounds the killing of what a command started.
	killTime = 10 * time.Second
	// setupTime is how long the making of a session goes on after its caller gave up.
	setupTime = 2 * time.Second
	// overtime is how much later than ours the sandbox's own clock kills.
	overtime = 2 * time.Second
)

// foreign speaks to an execd that isn't AstraBox's over the older protocol.
// Commands and processes are sessions of its /pty whose shell runs a script
// of ours: see the comment on markers. [Deviations] lists what can't be carried.
type foreign struct{ c *Conn }

func (f foreign) dir(nonce string) string { return f.c.dir + "/" + nonce }

// foreignID is the id of a process: the daemon's, then how it runs ("t": in a
// terminal, "p": with pipes) and its nonce, so that whoever has the id needs
// nothing else.
type foreignID struct {
	session, nonce string
	terminal       bool
}

var foreignIDForm = regexp.MustCompile(`^([A-Za-z0-9-]{1,36})-([pt])([A-Z2-7]{26})$`)

func parseForeignID(id string) (foreignID, bool) {
	m := foreignIDForm.FindStringSubmatch(id)
	if m == nil {
		return foreignID{}, false
	}
	return foreignID{session: m[1], nonce: m[3], terminal: m[2] == "t"}, true
}

func (i foreignID) String() string {
	if i.terminal {
		return i.session + "-t" + i.nonce
	}
	return i.session + "-p" + i.nonce
}

// isMissing reports whether the daemon said that what was named isn't there.
func isMissing(err error) bool {
	var no *refusal
	return errors.As(err, &no) && no.missing()
}

// session uploads a job's script and makes the session that runs it once
// somebody attaches. An id that comes with an error is to be killed.
func (f foreign) session(ctx context.Context, j *job) (foreignID, error) {
	if err := j.check(); err != nil {
		return foreignID{}, err
	}
	if err := f.checkDir(ctx, j.cwd); err != nil {
		return foreignID{}, err
	}
	// A request that is given up may still take effect, after its cleaning up.
	ctx, stop := lag(ctx, setupTime)
	defer stop()
	j.nonce = newNonce()
	j.dir = f.dir(j.nonce)
	id := foreignID{nonce: j.nonce, terminal: j.tty != nil}
	// An uploaded file can be read by all for a moment; its directory can't.
	private := map[string]any{j.dir: map[string]any{"mode": 700}}
	if err := f.c.json(ctx, http.MethodPost, "/directories", "", private, nil); err != nil {
		return id, startError(err)
	}
	if err := f.upload(ctx, j.dir+"/run", j.text()); err != nil {
		return id, startError(err)
	}
	// Attaching to a session whose shell was killed starts its command again,
	// which then finds no script.
	run := quote(j.dir + "/run")
	var made wire.ProcessCreated
	err := f.c.json(ctx, http.MethodPost, "/pty", "", map[string]string{
		"command": "[ -f " + run + " ] && exec sh " + run + "; sleep 0.1",
	}, &made)
	if err != nil {
		return id, startError(err)
	}
	id.session = made.SessionID
	if back, ok := parseForeignID(id.String()); !ok || back != id {
		return id, sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox names its sessions in a way that isn't understood")
	}
	return id, nil
}

// lag gives a context that ends some time after ctx does.
func lag(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(by)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-late.Done():
		}
	})
	return late, func() { stop(); cancel() }
}

// checkDir refuses a directory that isn't there, where that can be asked: the
// daemon would make it.
func (f foreign) checkDir(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	if strings.ContainsAny(dir, "$~") || !utf8.ValidString(dir) { // the daemon can't be asked about such a name
		o, err := f.line(ctx, "set --\n"+bytesWord(dir)+`[ -d "$1" ]`)
		switch {
		case err != nil:
			return err
		case !o.cut && o.code == 1:
			return sandbox.Errorf(sandbox.CodeInvalid, "the directory isn't there")
		}
		return nil // the shell finds out
	}
	var infos map[string]struct {
		Type string `json:"type"`
	}
	err := f.c.json(ctx, http.MethodGet, "/files/info", url.Values{"path": {dir}}.Encode(), nil, &infos)
	switch {
	case isMissing(err):
		return sandbox.Errorf(sandbox.CodeInvalid, "the directory isn't there")
	case err != nil:
		return startError(err)
	}
	for _, i := range infos {
		if i.Type != "directory" && i.Type != "symlink" {
			return sandbox.Errorf(sandbox.CodeInvalid, "the directory is something else")
		}
	}
	return nil
}

func (f foreign) upload(ctx context.Context, path string, content []byte) error {
	meta, err := json.Marshal(map[string]any{"path": path, "mode": 600})
	if err != nil {
		return fmt.Errorf("execd: %w", err)
	}
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	for _, part := range []struct {
		name string
		b    []byte
	}{{"metadata", meta}, {"file", content}} {
		w, err := form.CreateFormFile(part.name, part.name) // without a file name a part isn't seen
		if err == nil {
			_, err = w.Write(part.b)
		}
		if err != nil {
			return fmt.Errorf("execd: %w", err)
		}
	}
	if err := form.Close(); err != nil {
		return fmt.Errorf("execd: %w", err)
	}
	resp, err := f.c.do(ctx, request{
		method: http.MethodPost, path: "/files/upload", body: bytesBody(b.Bytes()),
		header: http.Header{"Content-Type": {form.FormDataContentType()}},
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, errorBodyLimit))
	return unreachable(ctx, err)
}

// stream runs a command. Its time is measured here, since a command that the
// sandbox's own clock killed looks like any other killed one.
func (f foreign) stream(ctx context.Context, c sandbox.Command, timeout int64, stdout, stderr io.Writer) (res sandbox.CommandResult, err error) {
	run, cancel := ctx, context.CancelFunc(func() {})
	j := &job{line: c.Line, cwd: c.Dir, env: c.Env, command: true}
	if timeout > 0 {
		limit := time.Duration(timeout) * time.Millisecond
		run, cancel = context.WithTimeout(ctx, limit)
		j.seconds = int(math.Ceil((limit + overtime).Seconds()))
	}
	defer cancel()
	id, err := f.session(run, j)
	if err == nil {
		res, err = f.follow(run, id, stdout, stderr)
	}
	if err == nil {
		// Its shell lingers; what the command left in the background goes on.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		_ = f.c.json(end, http.MethodDelete, "/pty/"+id.session, "", nil, nil) // it ends by itself too
		return res, nil
	}
	ended := run.Err() // by what comes next, time may have passed
	if id.nonce != "" {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		if kill := f.kill(end, id); kill != nil && ended != nil {
			return res, fmt.Errorf("%w; what it started may still run: %w", ended, kill)
		}
	}
	switch {
	case errors.Is(ended, context.DeadlineExceeded):
		return res, fmt.Errorf("the command ran out of time and was killed: %w", ended)
	case ended != nil:
		return res, ended
	}
	return res, err
}

// follow attaches to a command, which starts it, and reads it to its end.
func (f foreign) follow(ctx context.Context, id foreignID, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	var none sandbox.CommandResult
	a, err := f.join(ctx, id, sandbox.AttachOptions{}, standing{end: 1})
	if err != nil {
		return none, err
	}
	defer a.Close()
	for {
		frame, err := a.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, sandbox.ErrDisplaced):
			return none, lost(err) // no end of the command was seen
		case err != nil:
			return none, err
		case frame.Exit != nil && a.d.(*foreignDialect).killed:
			return none, lost(errors.New("the shell of a command was killed"))
		case frame.Exit != nil:
			return sandbox.CommandResult{ExitCode: frame.Exit.Code}, nil
		}
		to := stdout
		if frame.Channel == sandbox.Stderr {
			to = stderr
		}
		if to != nil {
			if _, err := to.Write(frame.Data); err != nil {
				return none, fmt.Errorf("execd: the command's output can't be passed on: %w", err)
			}
		}
	}
}

// kill ends a session with every process that it started. The daemon reaches
// one process group; the rest is found by its mark.
func (f foreign) kill(ctx context.Context, id foreignID) error {
	if id.session != "" {
		if err := f.c.json(ctx, http.MethodDelete, "/pty/"+id.session, "", nil, nil); err != nil && !isMissing(err) {
			return startError(err)
		}
	}
	o, err := f.line(ctx, killLine(id.nonce, f.dir(id.nonce)))
	if err != nil {
		return err
	}
	if o.code != 0 {
		return sandbox.Errorf(sandbox.CodeUnavailable, "not every process of it could be killed")
	}
	return nil
}

var errKeyLost = sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox lost the key of a process")

// start makes a process, or finds the one of the same key. Its key is a
// link in the sandbox, which one of several starts makes.
func (f foreign) start(ctx context.Context, s sandbox.ProcessSpec) (string, error) {
	name := fmt.Sprintf("%x", sha256.Sum256([]byte(s.Key)))
	keys := f.c.dir + "/keys"
	o, err := f.line(ctx, lastLine(keys, name))
	last := ""
	if err == nil {
		last, err = o.output()
	}
	if err != nil {
		return "", err
	}
	gone, ok := parseForeignID(last)
	if !ok && last != "" {
		return "", errKeyLost
	}
	if ok {
		switch _, err := f.asked(ctx, gone); {
		case err == nil:
			return last, nil
		case !errors.Is(err, sandbox.ErrProcessNotFound):
			return "", err
		}
	}
	j := &job{line: s.Line, cwd: s.Dir, env: s.Env, tty: s.TTY}
	if s.TTY != nil && (s.TTY.Cols == 0 || s.TTY.Rows == 0) {
		j.tty = &sandbox.Size{Cols: 80, Rows: 24}
	}
	user := s.User
	if user == "" {
		user = "root"
	}
	if j.user, err = f.account(ctx, user); err != nil {
		return "", err
	}
	id, err := f.session(ctx, j)
	winner := ""
	if err == nil {
		o, err = f.line(ctx, claimLine(keys, name, id.String(), gone.nonce))
	}
	if err == nil {
		winner, err = o.output()
	}
	if err == nil {
		if _, ok := parseForeignID(winner); !ok {
			err = errKeyLost
		}
	}
	if winner != id.String() && id.nonce != "" {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		_ = f.kill(end, id) // it was never started
	}
	return winner, err
}

// asked is what the daemon says about a session.
type asked struct {
	Running bool  `json:"running"`
	Next    int64 `json:"output_offset"`
}

func (f foreign) asked(ctx context.Context, id foreignID) (a asked, err error) {
	err = f.c.json(ctx, http.MethodGet, "/pty/"+id.session, "", nil, &a)
	return a, processError(err)
}

// state reads what a process's shell wrote down; run 0: it was never started.
func (f foreign) state(ctx context.Context, id foreignID) (state, error) {
	b, err := f.read(ctx, f.dir(id.nonce)+"/state", 256)
	if err != nil || b == nil {
		return state{}, err
	}
	s, err := parseState(b)
	return s, unreachable(ctx, err)
}

// known parses an id. One that isn't of this form is still asked for, so that
// only the daemon itself says that a process isn't there.
func (f foreign) known(ctx context.Context, process string) (foreignID, error) {
	id, ok := parseForeignID(process)
	if ok {
		return id, nil
	}
	if _, err := f.asked(ctx, foreignID{session: process}); err != nil {
		return id, err
	}
	return id, sandbox.ErrProcessNotFound // a session, but none of ours
}

func (f foreign) status(ctx context.Context, process string) (st sandbox.ProcessStatus, err error) {
	id, err := f.known(ctx, process)
	if err != nil {
		return st, err
	}
	a, err := f.asked(ctx, id)
	if err != nil {
		return st, err
	}
	s, err := f.state(ctx, id)
	if err != nil {
		return st, err
	}
	st = sandbox.ProcessStatus{
		Run: s.run, State: sandbox.ProcessRunning, Oldest: max(0, a.Next-foreignRing), Next: a.Next, Stdin: -1,
	}
	switch {
	case s.run == 0 && !a.Running:
		st.State = sandbox.ProcessRegistered
	case s.run == 0:
		st.Run = 1 // about to begin
	case s.exited:
		e := exitOf(s.code)
		st.State, st.Exit = sandbox.ProcessExited, &e
	case !a.Running: // its shell was killed with it
		st.State, st.Exit = sandbox.ProcessExited, &sandbox.Exit{Code: 137, Signal: "SIGKILL"}
	}
	return st, nil
}

func (f foreign) delete(ctx context.Context, process string) error {
	id, err := f.known(ctx, process)
	if err != nil {
		return err
	}
	return f.kill(ctx, id)
}
