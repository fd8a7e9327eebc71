package isolated

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/confine"
)

// argv0 is the name that the daemon's program has as a session's first process.
const argv0 = "execd-session"

// Inside reports whether this process is the first of a session. A program that
// makes sessions asks first thing, and then calls [Enter] instead of what it
// does otherwise. In one that never asked no session can be made: it would do
// as process 1 what it always does.
func Inside() bool {
	asked.Store(true)
	return len(os.Args) > 0 && os.Args[0] == argv0 && os.Getpid() == 1
}

var asked atomic.Bool

// The descriptors that a session's first process gets.
const (
	fdControl = 3 // to the daemon
	fdSetup   = 4 // what to do, as JSON in memory
	fdNotes   = 5 // of unfinished files, where setup says so
)

// setup is what the daemon tells the first process.
type setup struct {
	ID       string
	View     View
	UID, GID uint32
	Probe    bool // try, and end
	Noted    bool // there are notes of unfinished files
	Version  string
}

// Caps are what root has in a session: to handle files of the workspace, change
// to another account and listen on low ports. Its account, where that isn't
// root, has none.
var Caps = confine.CapsOf(unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_NET_BIND_SERVICE)

// Session is what the first process of a session knows.
type Session struct {
	ID        string
	UID, GID  uint32
	Workspace string   // as the session sees it
	Version   string   // of the daemon
	Notes     *os.File // for what is unfinished; nil: it isn't noted
	view      View
	control   *net.UnixConn
}

// Outside gives the path that the sandbox has for a place that the session may
// write to; "": it is the session's own, and ends with it.
func (s *Session) Outside(path string) string { return s.view.outside(path) }

// Enter makes this process the first of its session: it takes the view and
// gives up its privileges. The daemon learns of a failure. After success
// [Session.Ready] is to be called when requests can be served.
//
// cgo says that the program is linked with cgo, as test binaries are. Such a
// process can't take capabilities from all of its threads, so it keeps its own;
// what it starts lacks them in any case.
func Enter(cgo bool) (*Session, error) {
	f := os.NewFile(fdControl, "control")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("isolated: control: %w", err)
	}
	control, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("isolated: control is not a Unix socket")
	}
	s := &Session{control: control}
	probe, err := s.enter(cgo)
	if err != nil {
		return nil, errors.Join(err, s.tell(err))
	}
	if probe {
		return nil, errors.Join(errProbed, s.tell(nil))
	}
	return s, nil
}

var errProbed = errors.New("isolated: it works, which was all to be known")

func (s *Session) enter(cgo bool) (probe bool, err error) {
	f := os.NewFile(fdSetup, "setup")
	defer f.Close()
	var in setup
	if err := json.NewDecoder(f).Decode(&in); err != nil {
		return false, fmt.Errorf("read the setup: %w", err)
	}
	s.ID = in.ID
	s.UID, s.GID, s.Workspace, s.Version = in.UID, in.GID, in.View.Workspace.Path, in.Version
	s.view = in.View
	if in.Noted {
		unix.CloseOnExec(fdNotes)
		s.Notes = os.NewFile(fdNotes, "notes")
	}
	if in.View.OwnNet {
		if err := loopback(); err != nil {
			return false, err
		}
	}
	if err := in.View.enter(); err != nil {
		return false, err
	}
	// The session's programs must not look into this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return false, fmt.Errorf("protect the first process: %w", err)
	}
	err = confine.Process(Caps | confine.CapsOf(unix.CAP_SETPCAP))
	if errors.Is(err, syscall.ENOTSUP) && cgo {
		err = nil
	}
	return in.Probe, err
}

// loopback brings lo up in a network of its own.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(req))); e != 0 {
		return fmt.Errorf("loopback: %w", e)
	}
	return nil
}

// told is what the daemon learns of Enter.
type told struct {
	OK      bool   `json:"ok"`
	Status  int    `json:"status,omitempty"` // of an Error; 0: the place can't hold sessions
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

func (s *Session) tell(failure error) error {
	t := told{OK: failure == nil}
	var e *Error
	switch {
	case errors.As(failure, &e):
		t.Status, t.Code, t.Message = e.Status, e.Code, e.Message
	case failure != nil:
		t.Message = failure.Error()
	}
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = s.control.Write(b)
	return err
}

// Fail tells the daemon why there will be no session.
func (s *Session) Fail(why error) error { return s.tell(why) }

// Ready tells the daemon that requests are served from now on.
func (s *Session) Ready() error { return s.tell(nil) }

// Listener gives the connections that the daemon passes. Accept fails when the
// daemon is gone, or has let go of the session: then the session is to end.
func (s *Session) Listener() net.Listener { return &listener{control: s.control} }

type listener struct {
	control *net.UnixConn
	close   sync.Once
}

// ErrLetGo: the daemon doesn't hold the session any more.
var ErrLetGo = errors.New("isolated: the daemon has let go of the session")

func (l *listener) Accept() (net.Conn, error) {
	b, oob := make([]byte, 1), make([]byte, 64)
	for {
		n, m, _, _, err := l.control.ReadMsgUnix(b, oob)
		if err != nil || n == 0 {
			return nil, errors.Join(ErrLetGo, err)
		}
		conn, err := passed(oob[:m])
		if err == nil {
			return conn, nil
		}
	}
}

// passed takes the connection out of a control message.
func passed(oob []byte) (net.Conn, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil || len(fds) == 0 {
			continue
		}
		f := os.NewFile(uintptr(fds[0]), "connection")
		defer f.Close()
		for _, more := range fds[1:] {
			unix.Close(more) //nolint:errcheck // not asked for
		}
		return net.FileConn(f)
	}
	return nil, io.ErrUnexpectedEOF
}

func (l *listener) Close() (err error) {
	l.close.Do(func() { err = l.control.Close() })
	return err
}

func (l *listener) Addr() net.Addr { return l.control.LocalAddr() }

// enterTime bounds how long a session takes to come up.
const enterTime = 20 * time.Second
