package app

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/fault"
)

// state is a state directory that this process holds.
type state struct {
	dir          string // absolute
	installation string // who owns the sandboxes; never changes
	lock         *os.File
}

// openState makes the directory where it is missing, takes its lock and reads
// the installation's id. The kernel gives the lock back when the process ends,
// however it ends; programs that it starts don't inherit it.
func openState(dir string) (*state, error) {
	invalid := func(err error, format string, args ...any) error {
		return fault.Wrap(fault.StateInvalid, err, format, args...)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, invalid(err, "The state directory %q can't be used.", dir)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, invalid(err, "The state directory %s can't be made: %v. --state-dir names another one.", abs, plain(err))
	}
	info, err := os.Stat(abs)
	if err != nil {
		return nil, invalid(err, "The state directory %s can't be used: %v.", abs, plain(err))
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, invalid(nil, "Others may enter the state directory %s (mode %04o), which will hold keys. Run: chmod 700 %s", abs, perm, abs)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return nil, invalid(nil, "The state directory %s belongs to user %d, who could change what this server keeps there. Run: chown %d %s, or choose another with --state-dir.", abs, st.Uid, os.Geteuid(), abs)
	}
	lock, err := os.OpenFile(filepath.Join(abs, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, invalid(err, "The state directory %s can't be written to: %v. --state-dir names another one.", abs, plain(err))
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.StateInUse, "The state directory %s is in use by another server. Stop that one, or give this one a directory of its own with --state-dir.", abs)
		}
		return nil, invalid(err, "The state directory %s can't be locked: %v.", abs, plain(err))
	}
	id, err := installationID(filepath.Join(abs, "installation"))
	if err != nil {
		lock.Close()
		return nil, invalid(err, "The file %s can't be used: %v.", filepath.Join(abs, "installation"), plain(err))
	}
	return &state{dir: abs, installation: id, lock: lock}, nil
}

func (s *state) close() { s.lock.Close() }

// plain takes the path from a file error, which the sentence around it has.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

var installationForm = regexp.MustCompile(`^[a-z2-7]{26}$`)

// installationID reads the id, which it makes when the file is missing. It is
// written whole or not at all: sandboxes carry it, and another one would make
// them strangers.
func installationID(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(b))
		if !installationForm.MatchString(id) {
			return "", errors.New("it must hold 26 characters of a-z and 2-7")
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	id := strings.ToLower(rand.Text())
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(id + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return "", err
	}
	return id, nil
}

// listen opens the address. Without a login only this machine may reach the
// server, so every other address is refused.
func listen(ctx context.Context, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fault.Wrap(fault.SettingInvalid, err, "The listen address %q is not host:port.", address)
	}
	refuse := func() error {
		return fault.New(fault.AuthRequired, "The address %s can be reached from other machines, and this server has no login: whoever reaches it could run commands. Listen on 127.0.0.1, and reach it from elsewhere through an SSH tunnel or a proxy that asks who is there.", address)
	}
	addr, err := netip.ParseAddr(host)
	if host != "localhost" && (err != nil || !addr.Unmap().IsLoopback()) {
		return nil, refuse()
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fault.Wrap(fault.AddressInUse, err, "The address %s is in use by another program. Stop it, or choose another address with --listen.", address)
	case err != nil:
		return nil, fault.Wrap(fault.SettingInvalid, err, "Can't listen on %s: %v.", address, lastCause(err))
	}
	// "localhost" is what the machine's own files say it is.
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		l.Close()
		return nil, refuse()
	}
	return l, nil
}

func lastCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
