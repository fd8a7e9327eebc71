// Package oci is the runtime.Runtime that makes sandboxes with an OCI runtime
// (runc) and the kernel: no container daemon, no pulled image.
//
// The lifecycle service makes one [Runtime] per state directory with [New].
// All methods are safe for concurrent use; see package runtime for the
// contract. It needs root.
//
// # Where things are
//
// What a sandbox is can be read from where its directories are; no file
// describes it, so none can be torn or stale:
//
//	<StateDir>/making/ID     its files, while the first start isn't complete
//	<StateDir>/sandboxes/ID  its files, from the first complete start on
//	<StateDir>/trash/X       files on their way out
//	<StateDir>/base/X        lowest layers, by digest
//	<RunDir>/box/ID          while it has anything running: mount point, OCI
//	                         bundle, link; with the file "up" once execd answered
//	<RunDir>/runc/ID         what the OCI runtime keeps
//
// Intent comes before effect: the directory that names a link or group is
// there before it, and goes after it. So [New] finds and removes whatever a
// killed predecessor left half-made, and nothing else.
package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/host"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/cgroup"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/network"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
	"golang.org/x/sys/unix"
)

// Config says where the runtime keeps things and which programs it uses.
// All fields but Log are needed; paths are absolute.
type Config struct {
	// StateDir keeps sandboxes' files. Its file system must take overlay upper
	// directories; an overlay, thus most containers' own root, doesn't.
	StateDir string
	// RunDir is on a file system that a reboot empties, below a directory that
	// all installations of the machine share (/run/astrabox).
	RunDir string
	// Inst6 names the installation in everything that it makes on the machine:
	// six characters of [a-z0-9].
	Inst6 string
	// RuncPath is a runc-compatible program, ExecdPath a static execd.
	RuncPath, ExecdPath string
	// Log is where the runtime reports what it swept or couldn't remove. Nil: nowhere.
	Log *slog.Logger
}

// Runtime implements runtime.Runtime.
type Runtime struct {
	cfg      Config
	log      *slog.Logger
	lock     *os.File
	runc     runner
	groups   *cgroup.Tree
	net      *network.Network
	userns   rootfs.UserNamespaces
	skeleton string
	ranges   ranges
	limits   userLimits
	locks    keyLocks
	trash    *trash
	disk     *diskWatch
	spec     specBase

	mu      sync.Mutex
	closed  bool
	calls   sync.WaitGroup // calls that Close waits for
	removed bool
}

var _ runtime.Runtime = (*Runtime)(nil)

// cleanupTime bounds what is done after a failure or a cancelled context.
const cleanupTime = 20 * time.Second

// New checks that this machine can run sandboxes, takes hold of the
// installation, removes what a killed predecessor left half-made, and returns
// the runtime. It refuses to start half-working: the error names what is
// missing and what helps. A second process for the same RunDir is refused.
//
// The calling process becomes a child subreaper for good: orphans among its
// descendants become its children. Only the sandboxes' are reaped here.
func New(ctx context.Context, cfg Config) (*Runtime, error) {
	r := &Runtime{cfg: cfg, log: cfg.Log}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if err := makeDirs(cfg); err != nil {
		return nil, err
	}
	if err := host.Refuse(host.Check(ctx, host.Config{StateDir: cfg.StateDir, RuncPath: cfg.RuncPath, ExecdPath: cfg.ExecdPath})); err != nil {
		return nil, err
	}
	lock, err := takeLock(filepath.Join(cfg.RunDir, "lock"))
	if err != nil {
		return nil, err
	}
	r.lock = lock
	if err := r.start(ctx); err != nil {
		r.userns.Close()
		lock.Close()
		return nil, fmt.Errorf("sandbox runtime: %w", err)
	}
	return r, nil
}

func (r *Runtime) start(ctx context.Context) (err error) {
	if err = adopt(); err != nil {
		return err
	}
	r.runc = newRunner(ctx, r.cfg.RuncPath, filepath.Join(r.cfg.RunDir, "runc"))
	if r.groups, err = cgroup.Find("/astrabox-" + r.cfg.Inst6); err != nil {
		return err
	}
	if err = r.groups.Prepare(); err != nil {
		return err
	}
	if r.skeleton, err = rootfs.Skeleton(filepath.Join(r.cfg.StateDir, "base")); err != nil {
		return err
	}
	if r.spec, err = newSpecBase(r.cfg, r.groups); err != nil {
		return err
	}
	r.limits = readUserLimits()
	if r.net, err = network.Open(network.Config{Inst6: r.cfg.Inst6, RunDir: r.cfg.RunDir, LeaseDir: filepath.Dir(r.cfg.RunDir)}); err != nil {
		return err
	}
	r.trash = newTrash(filepath.Join(r.cfg.StateDir, "trash"), r.log)
	if err = r.sweep(ctx); err != nil {
		r.trash.close(false)
		return err
	}
	r.disk = newDiskWatch(r)
	return nil
}

var validInst = regexp.MustCompile(`^[a-z0-9]{6}$`)

func makeDirs(cfg Config) error {
	if !validInst.MatchString(cfg.Inst6) {
		return fmt.Errorf("sandbox runtime: installation %q is not six characters of [a-z0-9]", cfg.Inst6)
	}
	for _, p := range []string{cfg.StateDir, cfg.RunDir, cfg.RuncPath, cfg.ExecdPath} {
		if !filepath.IsAbs(p) {
			return fmt.Errorf("sandbox runtime: %q is not an absolute path", p)
		}
	}
	if filepath.Clean(cfg.RunDir) == "/" || filepath.Dir(filepath.Clean(cfg.RunDir)) == "/" {
		return fmt.Errorf("sandbox runtime: run directory %s needs a directory of its own above it, for the address leases", cfg.RunDir)
	}
	// A sandbox's root walks to its mount point with an id that owns nothing
	// here, so directories on that way let everybody through and nobody look;
	// the last one, each sandbox's own, is closed to all but its root.
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{cfg.StateDir, 0o700}, {filepath.Join(cfg.StateDir, "making"), 0o700}, {filepath.Join(cfg.StateDir, "sandboxes"), 0o700},
		{filepath.Join(cfg.StateDir, "trash"), 0o700}, {filepath.Join(cfg.StateDir, "base"), 0o700},
		{filepath.Dir(cfg.RunDir), 0o711}, {cfg.RunDir, 0o711}, {filepath.Join(cfg.RunDir, "box"), 0o711}, {filepath.Join(cfg.RunDir, "runc"), 0o700},
	} {
		_, err := os.Stat(d.path)
		if err == nil && (d.path == cfg.StateDir || d.path == filepath.Dir(cfg.RunDir)) {
			continue // not ours to change
		}
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("sandbox runtime: %w", err)
		}
		if err := os.Chmod(d.path, d.mode); err != nil {
			return fmt.Errorf("sandbox runtime: %w", err)
		}
	}
	for dir := filepath.Clean(cfg.RunDir); dir != "/"; dir = filepath.Dir(dir) {
		if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("sandbox runtime: %s doesn't let other users pass, which sandboxes need to reach their mount points below %s; chmod o+x it or choose another run directory", dir, cfg.RunDir)
		}
	}
	return nil
}

// takeLock makes this process the only one that works on the run directory.
// The kernel lets go of it however the process ends.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("sandbox runtime: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("sandbox runtime: another process works on %s; stop it first", filepath.Dir(path))
		}
		return nil, fmt.Errorf("sandbox runtime: lock %s: %w", path, err)
	}
	// The holder before us may have removed the file after we opened it; then
	// the lock holds nobody off.
	var ours, there unix.Stat_t
	if unix.Fstat(int(f.Fd()), &ours) != nil || unix.Stat(path, &there) != nil || ours.Ino != there.Ino {
		f.Close()
		return nil, fmt.Errorf("sandbox runtime: %s is being removed; try again", filepath.Dir(path))
	}
	return f, nil
}

// box is where the things of one sandbox are.
type box struct {
	id           string
	run          string // bundle and mount point
	root         string // mount point of its file system
	runc         string // the OCI runtime's state
	making, made string
}

func (r *Runtime) box(id string) box {
	run := filepath.Join(r.cfg.RunDir, "box", id)
	return box{
		id:     id,
		run:    run,
		root:   filepath.Join(run, "rootfs"),
		runc:   filepath.Join(r.cfg.RunDir, "runc", id),
		making: filepath.Join(r.cfg.StateDir, "making", id),
		made:   filepath.Join(r.cfg.StateDir, "sandboxes", id),
	}
}

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// begin admits a call for id and waits for its turn.
func (r *Runtime) begin(ctx context.Context, id string) (end func(), err error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("%w: sandbox id %q", runtime.ErrInvalid, id)
	}
	if err := r.enter(); err != nil {
		return nil, err
	}
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		r.calls.Done()
		return nil, err
	}
	return func() {
		unlock()
		r.calls.Done()
	}, nil
}

// enter counts a call that Close has to wait for.
func (r *Runtime) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return runtime.ErrClosed
	}
	r.calls.Add(1)
	return nil
}

// Close implements runtime.Runtime. It waits for calls under way. A Close that
// refused to remove may be called again.
func (r *Runtime) Close(removeAll bool) error {
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	r.calls.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed {
		return nil
	}
	if removeAll {
		if err := r.removeAll(); err != nil {
			if first { // as if it hadn't been called
				r.closed = false
			}
			return err
		}
	} else {
		r.trash.close(false)
	}
	r.removed = true
	r.disk.close()
	r.userns.Close()
	return r.lock.Close()
}

func (r *Runtime) removeAll() error {
	boxes, err := os.ReadDir(filepath.Join(r.cfg.RunDir, "box"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("sandbox runtime: %w", err)
	}
	if len(boxes) > 0 {
		return fmt.Errorf("sandbox runtime: %d sandboxes run or wait for their removal", len(boxes))
	}
	r.trash.close(true)
	var errs []error
	errs = append(errs, r.groups.RemoveParent())
	// The lease goes before the run directory, which others take for a sign of life.
	errs = append(errs, r.net.Remove())
	for _, d := range []string{"box", "runc"} {
		errs = append(errs, ignoreMissing(os.Remove(filepath.Join(r.cfg.RunDir, d))))
	}
	errs = append(errs, ignoreMissing(os.Remove(filepath.Join(r.cfg.RunDir, "lock"))), ignoreMissing(os.Remove(r.cfg.RunDir)))
	return errors.Join(errs...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
