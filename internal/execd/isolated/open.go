package isolated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	connIdle = 30 * time.Second
	maxConns = 4 // idle connections to one session
	// endTime is how long runs get to tell of their end when the session is deleted.
	endTime = time.Second
)

// Paths that the first process of a session serves for the daemon itself.
const (
	PathActivity = "/activity" // GET: Activity
	PathStop     = "/stop"     // POST: SIGTERM to all that runs; answers when nothing runs any more
	PathEnd      = "/end"      // POST: kills what runs, and answers when that was told
)

// Activity is what a session is doing on its own.
type Activity struct {
	Running int `json:"running"` // processes and commands that were asked for
}

// Open is a session, as the daemon knows it.
type Open struct {
	ID      string
	Request Request // as it was checked
	Created time.Time

	m         *Manager
	child     *child.Child
	control   *net.UnixConn
	notes     *files.Notes // of its unfinished files
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	over      chan struct{} // closed when nothing of it is left, and its place is free

	mu     sync.Mutex
	active int // requests that are being served
	last   time.Time
	dead   time.Time // zero: it lives
	timer  *time.Timer
}

// start starts a first process and waits until it has said how it went.
func (m *Manager) start(ctx context.Context, s setup, env []string) (*Open, error) {
	select {
	case m.starting <- struct{}{}:
		defer func() { <-m.starting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	o := &Open{m: m, notes: m.cfg.Notes.ForSession(s.ID), over: make(chan struct{})}
	if err := o.launch(s, env); err != nil {
		o.notes.Sweep()
		return nil, err
	}
	err := o.await(ctx)
	if err != nil || s.Probe {
		if err != nil {
			_ = o.child.Signal(syscall.SIGKILL)
		}
		<-o.child.Done()
		o.control.Close()
		o.notes.Sweep()
		return o, err
	}
	o.transport = &http.Transport{
		DialContext:         func(context.Context, string, string) (net.Conn, error) { return o.dial() },
		DisableCompression:  true,
		MaxIdleConnsPerHost: maxConns,
		IdleConnTimeout:     connIdle,
	}
	o.proxy = &httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {},
		Transport:     o.transport,
		FlushInterval: -1,
		ErrorHandler:  o.failed,
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del(wire.HeaderServer) // the daemon says that itself
			return nil
		},
		ErrorLog: log.New(io.Discard, "", 0), // it would name paths and queries
	}
	return o, nil
}

// launch forks the first process into its namespaces.
func (o *Open) launch(s setup, env []string) error {
	noted := o.notes.File()
	s.Noted = noted != nil
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	memory, err := unix.MemfdCreate("setup", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(memory), "setup")
	defer file.Close()
	if _, err = file.Write(b); err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	ours, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return err
	}
	control, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("isolated: control is not a Unix socket")
	}
	o.control = control
	flags := uintptr(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if s.View.OwnNet {
		flags |= unix.CLONE_NEWNET
	}
	descriptors := []int{int(null.Fd()), int(null.Fd()), 2, int(theirs.Fd()), int(file.Fd())}
	if noted != nil {
		descriptors = append(descriptors, int(noted.Fd()))
	}
	o.child, err = o.m.cfg.Reaper.Start(child.Spec{
		Path: "/proc/self/exe", Args: []string{argv0}, Env: env, Dir: "/", Apart: flags, Files: descriptors,
	})
	if err != nil {
		control.Close()
		if errors.Is(err, unix.EPERM) {
			return errors.New("the kernel, or a filter of system calls, refuses namespaces")
		}
		return err
	}
	return nil
}

func socketPair(kind int) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// await reads what the first process says of its start.
func (o *Open) await(ctx context.Context) error {
	if err := o.control.SetReadDeadline(time.Now().Add(enterTime)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = o.control.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, 64<<10)
	n, err := o.control.Read(b)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil || n == 0:
		return fmt.Errorf("the session's first process ended without a word: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	var t told
	if err := json.Unmarshal(b[:n], &t); err != nil {
		return fmt.Errorf("the session's first process is not understood: %w", err)
	}
	switch {
	case t.Status != 0:
		return refuse(t.Status, t.Code, "%s", t.Message)
	case !t.OK:
		return errors.New(t.Message)
	}
	return nil
}

// dial makes a connection to the first process by passing it one end.
func (o *Open) dial() (net.Conn, error) {
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	if err := o.control.SetWriteDeadline(time.Now().Add(endTime)); err != nil {
		return nil, err
	}
	if _, _, err := o.control.WriteMsgUnix([]byte{0}, unix.UnixRights(int(theirs.Fd())), nil); err != nil {
		return nil, err
	}
	return net.FileConn(ours)
}

// Dead reports whether the session has ended.
func (o *Open) Dead() bool { return !o.deadSince().IsZero() }

func (o *Open) deadSince() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dead
}

// Reason says why a session that is dead ended by itself.
func (o *Open) Reason() string {
	if !o.Dead() {
		return ""
	}
	if e := o.child.Exit(); e.Signal == "" {
		return fmt.Sprintf("its first process ended with status %d", e.Code)
	}
	return "its first process was ended by " + o.child.Exit().Signal
}

// LastRun is when the session was last asked for something.
func (o *Open) LastRun() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// IdleRemaining is how long the session still lives when nothing happens; ok
// false: for ever.
func (o *Open) IdleRemaining() (left time.Duration, ok bool) {
	idle := o.Request.idle()
	if idle == 0 {
		return 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.active > 0 {
		return idle, true
	}
	return max(idle-time.Since(o.last), 0), true
}

// ended is called when the first process has, and with it all others.
func (o *Open) ended() {
	o.mu.Lock()
	o.dead = time.Now()
	if o.timer != nil {
		o.timer.Stop()
	}
	o.mu.Unlock()
	o.control.Close()
	o.transport.CloseIdleConnections()
	o.notes.Sweep()
}

// begin and done stand around everything that the session is asked for.
func (o *Open) begin() error {
	if reason := o.Reason(); reason != "" {
		return refuse(http.StatusNotFound, CodeNotFound, "the isolated session has ended: %s", reason)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.active++
	o.last = time.Now()
	return nil
}

// busy reports whether the session is answering.
func (o *Open) busy() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.active > 0 && o.dead.IsZero()
}

func (o *Open) done() {
	o.mu.Lock()
	o.active--
	o.last = time.Now()
	o.mu.Unlock()
	o.rest()
}

// rest lets the time to the session's end by idleness begin anew.
func (o *Open) rest() {
	idle := o.Request.idle()
	if idle == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.dead.IsZero():
	case o.timer == nil:
		o.timer = time.AfterFunc(idle, o.idleOver)
	default:
		o.timer.Reset(idle)
	}
}

// idleOver ends the session unless something runs in it.
func (o *Open) idleOver() {
	o.mu.Lock()
	busy := o.active > 0 || time.Since(o.last) < o.Request.idle()
	o.mu.Unlock()
	if !busy {
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		var a Activity
		busy = o.ask(ctx, http.MethodGet, PathActivity, &a) == nil && a.Running > 0
	}
	if busy {
		o.rest()
		return
	}
	o.m.expire(o)
}

// ask sends a request of the daemon's own.
func (o *Open) ask(ctx context.Context, method, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://session"+path, nil)
	if err != nil {
		return err
	}
	resp, err := o.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the session answers %d", resp.StatusCode)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(out)
}

// end kills the session and returns when nothing is left of it.
func (o *Open) end(ctx context.Context) error {
	active := o.busy()
	o.mu.Lock()
	if o.timer != nil {
		o.timer.Stop()
	}
	o.mu.Unlock()
	if active {
		telling, cancel := context.WithTimeout(ctx, endTime)
		_ = o.ask(telling, http.MethodPost, PathEnd, nil) // it ends in any case
		cancel()
	}
	_ = o.child.Signal(syscall.SIGKILL)
	select {
	case <-o.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the session's processes survive SIGKILL: %w", context.Cause(ctx))
	}
}
