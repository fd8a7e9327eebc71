// Package quirk is an execd of the older protocol for tests, with the faults
// of the real one as switches: each can be had alone or all together. It runs
// real programs, as the account of the test and on its file system.
//
// It is called by tests of package execd and its like only. A Server is safe
// for concurrent use; Close ends every program that it started.
package quirk

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Token is what every request has to carry.
const Token = "a-quirky-token"

// Fault is a number of the client's list of what it works around.
type Fault int

// The faults, and what the server does with each.
const (
	DataLines   Fault = 1  // events are "data:" lines, and the last has no blank line behind it
	LateEnd     Fault = 2  // the response goes on for seconds after the terminal event, with more events
	BareCode    Fault = 3  // a run that can't start sends an object with a code and no type
	CutStream   Fault = 4  // the stream ends without a terminal event
	NoInit      Fault = 5  // no init; pings at any place; no execution_time
	SameKill    Fault = 6  // a timeout looks like any other SIGKILL
	KeepRunning Fault = 7  // a dropped connection leaves the command running
	LossyLines  Fault = 8  // line ends, bytes and the last newline are lost
	EarlyExit   Fault = 9  // exit is sent before the output, which is lost
	OldReplay   Fault = 10 // a replay from too old an offset is from the oldest (always); stderr is late
	BusyAfter   Fault = 11 // after an exit or a detach the session stays held for a moment
	StdinBlocks Fault = 12 // unread stdin keeps every other message from being read
	StallHolds  Fault = 13 // a reader that stalls keeps the child and the session
	Expands     Fault = 14 // $VAR, ${VAR} and ~ in a path are expanded; $1, $* and the like to nothing
	PlainBits   Fault = 15 // setuid, setgid and sticky are dropped, and not reported
	KeepsDest   Fault = 16 // a move doesn't replace what is at its destination
	InPlace     Fault = 17 // an upload truncates, writes under 0755, and sets bits and then owner behind it
	OddBodies   Fault = 18 // a directory has every length, a FIFO hangs, /proc fails, a bad range has no body
	LinkLies    Fault = 19 // a dangling link isn't deleted, a link to a directory neither
	OddErrors   Fault = 20 // {"error"}; 404 INVALID_REQUEST_BODY; 500 "context not found"
	RootGroup   Fault = 21 // a uid without a gid runs with group 0
	TwoValues   Fault = 22 // a session that can't be made answers with two JSON values
	EchoCursor  Fault = 23 // a log cursor past the end is given back
	ListFails   Fault = 24 // an entry that vanishes while it is listed fails the listing
	NamesOnly   Fault = 25 // an owner in digits is refused, once the content is in place
	ShortBodies Fault = 26 // a download ends before its length
	NoRoom      Fault = 27 // the disk fills up in the middle of an upload
	BothNames   Fault = 28 // an entry whose name isn't UTF-8 is listed under another one
)

// Faults is the table of all of them.
var Faults = map[Fault]string{
	DataLines: "data lines", LateEnd: "late end", BareCode: "bare code", CutStream: "cut stream", NoInit: "no init",
	SameKill: "timeouts look like kills", KeepRunning: "disconnects kill nothing", LossyLines: "lossy lines",
	Expands: "expands", PlainBits: "plain bits", KeepsDest: "keeps the destination", InPlace: "in place", OddBodies: "odd bodies",
	LinkLies: "lies about links", ListFails: "listing fails", NamesOnly: "names only", ShortBodies: "short bodies", NoRoom: "no room", BothNames: "changed names",
	EarlyExit: "early exit", OldReplay: "silent gaps, late stderr", BusyAfter: "busy after exit", StdinBlocks: "stdin blocks",
	StallHolds: "stalls hold", OddErrors: "odd errors", RootGroup: "root group", TwoValues: "two values", EchoCursor: "echoed cursor",
}

// Harmless are the faults with which everything still works.
var Harmless = []Fault{
	DataLines, LateEnd, NoInit, SameKill, KeepRunning, LossyLines, EarlyExit, OldReplay, BusyAfter, StdinBlocks, StallHolds, OddErrors, RootGroup, EchoCursor,
	Expands, PlainBits, KeepsDest, InPlace, OddBodies, LinkLies, ListFails, NamesOnly, BothNames,
}

// Times of the server, shorter than the real one's.
const (
	lateEnd    = 5 * time.Second
	busyTime   = 150 * time.Millisecond
	writeTime  = 10 * time.Second
	pingEvery  = 100 * time.Millisecond
	pongTime   = 5 * time.Second
	ringSize   = 1 << 20
	frameSize  = 32 << 10
	drainTime  = 100 * time.Millisecond
	commandEnd = 3 * time.Second
)

// Server is a running daemon. The exported fields are set before it is used.
type Server struct {
	// Shell runs commands, bash when it is empty, with Path as its PATH.
	Shell, Path string
	// Between is called in the middle of an operation ("upload": the content is
	// there and has its first bits; "download": it is about to be looked at;
	// "list": names were read; "command": one is about to run) with its path or line.
	Between func(op, what string)

	faults map[Fault]bool
	http   *httptest.Server
	wg     sync.WaitGroup
	done   chan struct{}

	mu       sync.Mutex
	closed   bool
	requests []string // "METHOD /path" of each
	bodies   []string // of POST /pty and POST /command
	sessions map[string]*session
	commands map[string]*command
	isolated []*isolated
}

// New starts a server with the given faults.
func New(faults ...Fault) *Server {
	s := &Server{faults: map[Fault]bool{}, done: make(chan struct{}), sessions: map[string]*session{}, commands: map[string]*command{}}
	for _, f := range faults {
		s.faults[f] = true
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /command", s.postCommand)
	mux.HandleFunc("DELETE /command", s.deleteCommand)
	mux.HandleFunc("GET /command/{a}/{b}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("a") == "status" {
			s.commandStatus(w, r.PathValue("b"))
			return
		}
		s.commandLogs(w, r)
	})
	mux.HandleFunc("POST /pty", s.postSession)
	mux.HandleFunc("GET /pty/{id}", s.getSession)
	mux.HandleFunc("DELETE /pty/{id}", s.deleteSession)
	mux.HandleFunc("GET /pty/{id}/ws", s.attach)
	mux.HandleFunc("POST /files/upload", s.upload)
	mux.HandleFunc("GET /files/download", s.download)
	mux.HandleFunc("GET /files/info", s.info)
	mux.HandleFunc("DELETE /files", s.remove)
	mux.HandleFunc("POST /files/mv", s.move)
	mux.HandleFunc("POST /files/permissions", s.permissions)
	mux.HandleFunc("GET /directories/list", s.list)
	mux.HandleFunc("POST /directories", s.makeDirectories)
	mux.HandleFunc("DELETE /directories", s.removeDirectories)
	s.isolatedRoutes(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "404 page not found")
	})
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		if s.closed {
			s.mu.Unlock()
			return
		}
		s.wg.Add(1) // the HTTP server doesn't wait for those with a WebSocket
		s.mu.Unlock()
		defer s.wg.Done()
		if r.Header.Get("X-EXECD-ACCESS-TOKEN") != Token {
			answer(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN"})
			return
		}
		mux.ServeHTTP(w, r)
	}))
	return s
}

// URL is the server's address.
func (s *Server) URL() *url.URL {
	u, _ := url.Parse(s.http.URL)
	return u
}

// Close ends all.
func (s *Server) Close() {
	close(s.done)
	s.mu.Lock()
	s.closed = true
	for _, x := range s.sessions {
		x.kill()
	}
	for _, c := range s.commands {
		c.kill()
	}
	for _, i := range s.isolated {
		i.kill()
	}
	s.mu.Unlock()
	s.http.CloseClientConnections()
	s.http.Close()
	s.wg.Wait()
}

// Cut breaks every connection off.
func (s *Server) Cut() {
	s.http.CloseClientConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		x.mu.Lock()
		if x.holder != nil && x.holder.live {
			x.holder.ws.CloseNow()
		}
		x.mu.Unlock()
	}
}

// Requests gives "METHOD /path" of the requests so far that begin with prefix.
func (s *Server) Requests(prefix string) (got []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if strings.HasPrefix(r, prefix) {
			got = append(got, r)
		}
	}
	return got
}

// Bodies gives what POST /pty and POST /command carried.
func (s *Server) Bodies() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.bodies, "\n")
}

func (s *Server) body(r *http.Request, to any) error {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.bodies = append(s.bodies, string(b))
	s.mu.Unlock()
	return json.Unmarshal(b, to)
}

func (s *Server) between(op, what string) {
	if s.Between != nil {
		s.Between(op, what)
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, map[string]string{"code": code, "message": message})
}

// missing says in one of the ways that something isn't there.
func (s *Server) missing(w http.ResponseWriter, what string) {
	if s.faults[OddErrors] {
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", what+": context not found")
		return
	}
	refuse(w, http.StatusNotFound, "CONTEXT_NOT_FOUND", what+" not found")
}
