package oci

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/network"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// startTime bounds Create and Resume when the caller's context doesn't.
const startTime = 60 * time.Second

// Create implements runtime.Runtime.
func (r *Runtime) Create(ctx context.Context, s runtime.Spec) (runtime.Running, error) {
	end, err := r.begin(ctx, s.ID)
	if err != nil {
		return runtime.Running{}, err
	}
	defer end()
	if err := validate(s); err != nil {
		return runtime.Running{}, err
	}
	b := r.box(s.ID)
	if found := r.found(b); len(found) > 0 {
		return runtime.Running{}, fmt.Errorf("sandbox %s %w", s.ID, runtime.ErrExists)
	}
	run, err := r.create(ctx, s, b)
	if err != nil {
		return runtime.Running{}, r.undo(ctx, b, fmt.Errorf("create sandbox %s: %w", s.ID, err), func(ctx context.Context) error {
			_, err := r.remove(ctx, b)
			return err
		})
	}
	return run, nil
}

func (r *Runtime) create(ctx context.Context, s runtime.Spec, b box) (runtime.Running, error) {
	ids, err := r.ranges.take()
	if err != nil {
		return runtime.Running{}, err
	}
	layers := rootfs.Layers{Dir: b.making}
	if err := layers.Make(ids); err != nil {
		if _, e := layers.Range(); e != nil { // nothing on disk tells whose range it is
			r.ranges.free(ids)
		}
		return runtime.Running{}, err
	}
	run, err := r.launch(ctx, s, b, layers, ids)
	if err != nil {
		return runtime.Running{}, err
	}
	if err := os.Rename(b.making, b.made); err != nil {
		return runtime.Running{}, err
	}
	return run, nil
}

// Resume implements runtime.Runtime.
func (r *Runtime) Resume(ctx context.Context, s runtime.Spec) (runtime.Running, error) {
	end, err := r.begin(ctx, s.ID)
	if err != nil {
		return runtime.Running{}, err
	}
	defer end()
	if err := validate(s); err != nil {
		return runtime.Running{}, err
	}
	b := r.box(s.ID)
	if _, err := os.Lstat(b.made); err != nil {
		return runtime.Running{}, fmt.Errorf("sandbox %s %w", s.ID, runtime.ErrNotFound)
	}
	if pid, _ := r.init(b); pid != 0 {
		return runtime.Running{}, fmt.Errorf("sandbox %s runs: %w", s.ID, runtime.ErrExists)
	}
	// What a process 1 that ended by itself left.
	if _, err := r.halt(ctx, b, true); err != nil {
		return runtime.Running{}, fmt.Errorf("resume sandbox %s: %w", s.ID, err)
	}
	layers := rootfs.Layers{Dir: b.made}
	ids, err := layers.Range()
	if err != nil {
		return runtime.Running{}, fmt.Errorf("resume sandbox %s: %w", s.ID, err)
	}
	run, err := r.launch(ctx, s, b, layers, ids)
	if err != nil {
		return runtime.Running{}, r.undo(ctx, b, fmt.Errorf("resume sandbox %s: %w", s.ID, err), func(ctx context.Context) error {
			_, err := r.halt(ctx, b, false)
			return err
		})
	}
	return run, nil
}

// undo cleans up after cause, whatever became of ctx, and reports both.
func (r *Runtime) undo(ctx context.Context, b box, cause error, clean func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	defer reapStages()
	if err := clean(ctx); err != nil {
		r.log.ErrorContext(ctx, "sandbox left behind after a failed start", "sandbox", b.id, "error", err)
		return errors.Join(cause, fmt.Errorf("clean up: %w", err))
	}
	return cause
}

// launch starts a sandbox on its layers and returns when execd answered. It
// cleans nothing up.
func (r *Runtime) launch(ctx context.Context, s runtime.Spec, b box, layers rootfs.Layers, ids rootfs.Range) (runtime.Running, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	none := runtime.Running{}

	link, err := r.net.Reserve()
	if err != nil {
		return none, fmt.Errorf("%w: %w", runtime.ErrExhausted, err)
	}
	if err := r.writeIntent(b, link, ids, s.DiskBytes); err != nil {
		r.net.Free(link)
		return none, err
	}
	killpoint("intent")
	if err := r.mount(ctx, b, layers, ids); err != nil {
		return none, err
	}
	killpoint("mounted")
	if err := writeSpec(b.run, r.spec.build(s, b, ids, r.limits)); err != nil {
		return none, err
	}

	door, err := newDoor()
	if err != nil {
		return none, err
	}
	defer door.close()
	pidFile, logFile := filepath.Join(b.run, "pid"), filepath.Join(b.run, "runc.log")
	err = r.runc.run(ctx, logFile, []*os.File{door.tokenRead, door.readyWrite},
		"create", "--bundle", b.run, "--pid-file", pidFile, "--preserve-fds", "2", b.id)
	door.childHasIt()
	if err != nil {
		return none, err
	}
	pid, err := readPID(pidFile)
	if err != nil {
		return none, err
	}
	killpoint("created")
	// Held from here on, so that the number can't come to mean another process.
	watch, err := openProcess(pid)
	if err != nil {
		return none, err
	}
	defer watch.close()
	if !r.groups.Contains(b.id, pid) {
		return none, errors.New("process 1 ended while it was made")
	}
	if err := r.net.Plug(pid, link); err != nil {
		return none, err
	}
	killpoint("plugged")
	if err := r.runc.start(ctx, logFile, b.id, watch); err != nil {
		return none, explainEnd(ctx, watch, s, err)
	}
	killpoint("started")
	addr := netip.AddrPortFrom(link.Addr, runtime.ExecdPort)
	if err := door.waitReady(ctx); err != nil {
		return none, explainEnd(ctx, watch, s, err)
	}
	if err := ping(ctx, addr, door.token); err != nil {
		if exit := watch.exit(ctx, endTime); exit.Known && exit.Code < 128 { // not by a signal
			return none, fmt.Errorf("%w: entrypoint: it ended with status %d before the sandbox was ready", runtime.ErrInvalid, exit.Code)
		}
		return none, err
	}
	if err := os.WriteFile(filepath.Join(b.run, "up"), nil, 0o600); err != nil {
		return none, err
	}
	killpoint("up")
	return runtime.Running{PID: pid, Addr: addr, Token: door.token}, nil
}

// endTime is how long the end of process 1 is waited for, when something else
// says that it has ended. A busy machine tells it late.
const endTime = 2 * time.Second

// explainEnd says how process 1 ended where that is why a start failed with
// err: 126 and 127 are execd's for an entrypoint that it can't start.
func explainEnd(ctx context.Context, watch *process, s runtime.Spec, err error) error {
	switch exit := watch.exit(ctx, endTime); {
	case exit.Code == 126 && len(s.Entrypoint) > 0:
		return fmt.Errorf("%w: entrypoint: %q can't be executed", runtime.ErrInvalid, s.Entrypoint[0])
	case exit.Code == 127 && len(s.Entrypoint) > 0:
		return fmt.Errorf("%w: entrypoint: the sandbox has no program %q", runtime.ErrInvalid, s.Entrypoint[0])
	case exit.Known:
		return fmt.Errorf("%w (process 1 ended with status %d)", err, exit.Code)
	}
	return err
}

// writeIntent makes the run directory of b and notes the link in it before
// there is one, and what a later instance can't find elsewhere.
//
// The sandbox's root has to pass through the directory to its mount point; other
// users of the machine must not. The list of mounts tells them where it is, and
// a sandbox's own files say to whom inside they are open, not to whom outside.
func (r *Runtime) writeIntent(b box, link network.Link, ids rootfs.Range, disk int64) error {
	if err := os.Mkdir(b.run, 0o700); err != nil {
		return err
	}
	if err := os.Chown(b.run, -1, ids.Base()); err != nil {
		return err
	}
	if err := os.Chmod(b.run, 0o710); err != nil {
		return err
	}
	if err := os.Mkdir(b.root, 0o755); err != nil {
		return err
	}
	j, err := json.Marshal(intent{Link: link.Name, Addr: link.Addr, Skeleton: filepath.Base(r.skeleton), Disk: disk})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.run, "net.json"), j, 0o600)
}

// intent is what a run directory says about its sandbox.
type intent struct {
	Link     string     `json:"link"`
	Addr     netip.Addr `json:"addr"`
	Skeleton string     `json:"skeleton"`
	Disk     int64      `json:"disk,omitempty"` // limit in bytes
}

// readIntent gives the zero intent where there is none.
func readIntent(b box) intent {
	var i intent
	if j, err := os.ReadFile(filepath.Join(b.run, "net.json")); err == nil {
		_ = json.Unmarshal(j, &i) // torn: the link wasn't made yet
	}
	return i
}

func (i intent) link() network.Link { return network.Link{Name: i.Link, Addr: i.Addr} }

// mount mounts b's file system, the one of the run before where it was kept.
func (r *Runtime) mount(ctx context.Context, b box, layers rootfs.Layers, ids rootfs.Range) error {
	if tree := r.trash.reclaim(b.id); tree != nil {
		return rootfs.Attach(tree, b.root)
	}
	// Two file systems must not share a layer, so the one before must be gone.
	if err := r.trash.released(ctx, b.id); err != nil {
		return err
	}
	ns, err := r.userns.Take(ids)
	if err != nil {
		return err
	}
	defer r.userns.Give(ids, ns)
	return layers.Mount(r.skeleton, b.root, ns)
}

// door is how the token gets to execd and how execd says that it listens.
type door struct {
	token                 string
	tokenRead, readyWrite *os.File // the sandbox's ends
	readyRead             *os.File
}

func newDoor() (*door, error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	d := &door{token: hex.EncodeToString(raw[:])}
	tokenRead, tokenWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	d.tokenRead = tokenRead
	// A pipe holds far more than a token, so nobody needs to read yet.
	_, err = tokenWrite.WriteString(d.token)
	if err = errors.Join(err, tokenWrite.Close()); err != nil {
		d.close()
		return nil, err
	}
	if d.readyRead, d.readyWrite, err = os.Pipe(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// childHasIt closes the sandbox's ends, so that its death ends the pipe.
func (d *door) childHasIt() {
	d.tokenRead.Close()
	d.readyWrite.Close()
}

func (d *door) close() {
	for _, f := range []*os.File{d.tokenRead, d.readyWrite, d.readyRead} {
		if f != nil {
			f.Close()
		}
	}
}

// waitReady waits until execd wrote that it is ready or why not, or ended.
func (d *door) waitReady(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = d.readyRead.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var buf [1024]byte
	n, err := d.readyRead.Read(buf[:])
	why, failed := strings.CutPrefix(string(buf[:n]), wire.FailedPrefix)
	switch {
	case failed:
		return fmt.Errorf("execd refuses to start: %s", strings.TrimSpace(why))
	case n > 0:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("execd didn't get ready: %w", context.Cause(ctx))
	case errors.Is(err, io.EOF):
		return errors.New("execd ended before it was ready")
	}
	return fmt.Errorf("execd didn't get ready: %w", err)
}

// pinger asks each execd once, so it keeps no connections.
var pinger = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, Proxy: nil},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// ping asks execd whether it answers.
func ping(ctx context.Context, addr netip.AddrPort, token string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr.String()+"/ping", nil)
	if err != nil {
		return err
	}
	req.Header.Set(wire.HeaderToken, token)
	resp, err := pinger.Do(req)
	if err != nil {
		return fmt.Errorf("execd doesn't answer: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("execd answers %s to a ping", strconv.Quote(strings.TrimSpace(resp.Status)))
	}
	return nil
}

// killpoint is where a test kills the process; see the tests.
var killpoint = func(string) {}
