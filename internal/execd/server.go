package execd

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/internal/execd/gate"
	"github.com/astrabox/astrabox/internal/execd/isolated"
	"github.com/astrabox/astrabox/internal/execd/metrics"
	"github.com/astrabox/astrabox/internal/execd/operation"
	"github.com/astrabox/astrabox/internal/execd/process"
	"github.com/astrabox/astrabox/internal/execd/proxy"
	"github.com/astrabox/astrabox/internal/execd/shell"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	maxConnections = 1024
	maxHeader      = 64 << 10
	headerTime     = 10 * time.Second
	idleTime       = 5 * time.Minute
	flushTime      = 100 * time.Millisecond
)

// Config is what a Server needs.
type Config struct {
	// Token is what every request carries in wire.HeaderToken; empty: none is wanted.
	Token   string
	Version string
	// Files serves /v1/fs/, /files and /directories, with files.Features; nil: the daemon has none of them.
	Files    http.Handler
	Accounts *account.DB
	Reaper   *child.Reaper
	Log      *slog.Logger
	// EnvFile is a file of variables for commands, read anew for each; "": none.
	EnvFile string
	// Notes are of the unfinished files of isolated sessions; nil: none.
	Notes *files.Notes
	// Operations bounds how many operations are remembered; 0: operation.DefaultCapacity.
	Operations int

	silence time.Duration // of peers; 0: gate.Silence
	inside  *inside       // not nil: the server is that of an isolated session
}

// Server answers the requests of one daemon.
type Server struct {
	cfg        Config
	token      [sha256.Size]byte
	http       *http.Server
	commands   *command.Runner
	processes  *process.Manager
	sessions   *shell.Manager
	isolated   *isolated.Manager // nil in an isolated session
	operations *operation.Registry
	meter      *metrics.Meter
	proxy      *proxy.Handler
	port       atomic.Int64 // the server's own
	ending     context.Context
	endAll     context.CancelFunc // ends answers that have no end of their own
	stopping   atomic.Bool
	records    records
	background sync.WaitGroup // commands of the older protocol that nobody waits for
	requests   atomic.Int64   // being answered, attached WebSockets included
}

// New makes a Server. [Server.Shutdown] ends it.
func New(cfg Config) (*Server, error) {
	runner, err := command.NewRunner(cfg.Accounts, cfg.Reaper)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:       cfg,
		token:     sha256.Sum256([]byte(cfg.Token)),
		commands:  runner,
		processes: process.NewManager(process.Config{Reaper: cfg.Reaper, Accounts: cfg.Accounts, Log: cfg.Log}),
	}
	if s.cfg.silence == 0 {
		s.cfg.silence = gate.Silence
	}
	if cfg.Operations == 0 {
		cfg.Operations = operation.DefaultCapacity
	}
	s.operations = operation.New(cfg.Operations, nil)
	s.sessions = shell.NewManager(runner)
	s.meter = metrics.New()
	routes := s.routes
	if cfg.inside != nil {
		cfg.inside.server = s
		routes = cfg.inside.routes
	} else {
		s.isolated = isolated.NewManager(isolated.Config{
			Reaper: cfg.Reaper, Accounts: cfg.Accounts, Log: cfg.Log, Version: cfg.Version, MemoryLimit: s.meter.MemoryLimit,
			Notes: cfg.Notes,
		})
	}
	s.proxy = proxy.New(func() int { return int(s.port.Load()) })
	s.ending, s.endAll = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler:           s.guard(routes()),
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connection{}, c)
		},
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /version", s.version)
	mux.HandleFunc("POST /command", noStore(s.postCommand))
	mux.HandleFunc("DELETE /command", s.interruptCommand)
	mux.HandleFunc("GET /command/{one}/{two}", s.commandByID)
	mux.HandleFunc("POST /command/operations", noStore(s.postCommandOperation))
	mux.HandleFunc("POST /pty/operations", noStore(s.postProcessOperation))
	mux.HandleFunc("GET /execution/instance", noStore(s.getInstance))
	mux.HandleFunc("GET /execution/operation", noStore(s.getOperation))
	mux.HandleFunc("POST /session", s.postSession)
	mux.HandleFunc("POST /session/{id}/run", s.runInSession)
	mux.HandleFunc("DELETE /session/{id}", s.deleteSession)
	mux.HandleFunc("POST /code", s.postCode)
	mux.HandleFunc("DELETE /code", s.interruptCommand)
	mux.HandleFunc("POST /code/context", s.postCodeContext)
	mux.HandleFunc("GET /code/contexts", s.listCodeContexts)
	mux.HandleFunc("DELETE /code/contexts", s.deleteCodeContexts)
	mux.HandleFunc("GET /code/contexts/{id}", s.noCodeContext)
	mux.HandleFunc("DELETE /code/contexts/{id}", s.noCodeContext)
	mux.HandleFunc("GET /metrics", s.getMetrics)
	mux.HandleFunc("GET /metrics/watch", s.watchMetrics)
	mux.HandleFunc("GET /v1/isolated/capabilities", s.isolatedCapabilities)
	mux.HandleFunc("POST /v1/isolated/session", s.postIsolated)
	mux.HandleFunc("GET /v1/isolated/sessions", s.listIsolated)
	mux.HandleFunc("GET /v1/isolated/session/{id}", s.getIsolated)
	mux.HandleFunc("DELETE /v1/isolated/session/{id}", s.deleteIsolated)
	mux.HandleFunc("/v1/isolated/session/{id}/{rest...}", s.inIsolated)
	mux.HandleFunc("POST /pty", noStore(s.postProcess))
	mux.HandleFunc("GET /pty/{id}", s.getProcess)
	mux.HandleFunc("DELETE /pty/{id}", s.deleteProcess)
	mux.HandleFunc("GET /pty/{id}/ws", s.attachProcess)
	if f := s.cfg.Files; f != nil {
		for _, path := range []string{"/v1/fs/", "/v1/filesystem/", "/files", "/files/", "/directories", "/directories/"} {
			mux.Handle(path, s.ended(f))
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such operation")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Before the mux, which would clean the path.
		if path := r.URL.EscapedPath(); path == strings.TrimSuffix(proxy.Prefix, "/") || strings.HasPrefix(path, proxy.Prefix) {
			s.serveProxy(w, r)
			return
		}
		if r.Method == http.MethodHead {
			// No operation is a HEAD, which the mux would take for a GET.
			refuse(w, http.StatusNotFound, "NOT_FOUND", "no such operation")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serveProxy ends with the server as well as with the request.
func (s *Server) serveProxy(w http.ResponseWriter, r *http.Request) {
	if b, ok := r.Body.(*timedBody); ok {
		b.unbounded() // what a program and its clients agree on is theirs
	}
	s.ended(s.proxy).ServeHTTP(w, r)
}

// ended makes answers of h, such as a watch, end with the server as well as
// with their requests.
func (s *Server) ended(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.ending, cancel)()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// noStore keeps what lies between from storing the answer.
func noStore(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		h(w, r)
	}
}

// guard answers for the daemon as a whole: its name, the token, and its end.
// Nothing behind it is reached, not even a redirect, without the token.
func (s *Server) guard(next http.Handler) http.Handler {
	name := wire.ServerName + "/" + s.cfg.Version
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		defer s.requests.Add(-1)
		rc := http.NewResponseController(w)
		w.Header().Set(wire.HeaderServer, name)
		if !s.authorised(r) {
			defer timeBody(rc, r, strangerTime)()
			w.Header().Set("Cache-Control", "no-store")
			// A stranger's connection isn't kept.
			w.Header().Set("Connection", "close")
			reply(w, http.StatusUnauthorized, struct {
				wire.Error
				Old string `json:"error"` // the shape that other clients read
			}{
				wire.Error{Code: "UNAUTHORIZED", Message: "the token is missing or wrong"},
				"Unauthorized: invalid or missing header " + wire.HeaderToken,
			})
			return
		}
		if c, ok := r.Context().Value(connection{}).(*gate.Conn); ok {
			c.Welcome()
		}
		defer timeBody(rc, r, bodyStall)()
		if s.stopping.Load() {
			w.Header().Set("Connection", "close")
			refuse(w, http.StatusServiceUnavailable, wire.CodeStopping, "the daemon is stopping")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// connection is the key of a request's *gate.Conn.
type connection struct{}

// authorised compares digests, so that the time taken says nothing about the token.
func (s *Server) authorised(r *http.Request) bool {
	if s.cfg.Token == "" {
		return true
	}
	given := sha256.Sum256([]byte(r.Header.Get(wire.HeaderToken)))
	return subtle.ConstantTimeCompare(given[:], s.token[:]) == 1
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	v := wire.Version{
		Server: wire.ServerName, Version: s.cfg.Version, Wire: wire.Protocol,
		Features: []string{wire.FeatureOutput, wire.FeatureProcess, wire.FeatureIsolated},
	}
	if s.cfg.Files != nil {
		v.Features = append(v.Features, files.Features()...)
	}
	reply(w, http.StatusOK, v)
}

// Serve answers on l until Shutdown.
func (s *Server) Serve(l *net.TCPListener) error {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		s.port.Store(int64(a.Port))
	}
	err := s.http.Serve(gate.New(l, maxConnections, s.cfg.silence))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Stop refuses new requests and asks all that runs to end, with SIGTERM.
func (s *Server) Stop() {
	s.stopping.Store(true)
	s.commands.Stop()
	s.isolated.Stop()
	s.processes.Stop()
	s.processes.Signal(syscall.SIGTERM)
	s.processes.HangUp()
}

// Quiet waits until nothing runs, or ctx ends.
func (s *Server) Quiet(ctx context.Context) {
	poll(ctx, func() bool { return s.commands.Active() == 0 && s.processes.Active() == 0 })
	s.isolated.Quiet(ctx)
}

// poll waits until done holds, or ctx ends.
func poll(ctx context.Context, done func() bool) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Shutdown kills what runs, lets the answers go out, and returns when nothing
// of the server is left or ctx has ended.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopping.Store(true)
	s.commands.Kill()
	s.isolated.Close(ctx)
	s.processes.Close(ctx)
	s.sessions.Close()
	s.endAll()
	poll(ctx, func() bool { return s.requests.Load() == 0 })
	// What is left are answers on their last bytes, and connections without a
	// request, which the HTTP server would give some seconds more.
	last, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	err := s.http.Shutdown(last)
	if err != nil {
		err = s.http.Close()
	}
	s.proxy.Close()
	s.commands.Close(ctx)
	if ctx.Err() == nil {
		s.background.Wait()
		s.records.close()
	}
	if err != nil {
		return fmt.Errorf("execd: %w", err)
	}
	return ctx.Err()
}
