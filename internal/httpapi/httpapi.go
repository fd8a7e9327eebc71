// Package httpapi serves the HTTP API of the platform: JSON routes described
// by an OpenAPI document, event streams, file transfers and terminals.
//
// The composition root makes a [Server] and gives it to an http.Server; the
// console handler answers every path that is not the API's. The package holds
// no state of its own apart from open streams, decides nothing about
// conversations, and maps every failure to a problem document through package
// fault. Everything is safe for concurrent use.
//
// Bounds: JSON bodies 1 MiB, message text 256 KiB, uploads and downloads none
// (they stream, and a peer that makes no progress is cut off), 1,024 open
// event streams and terminals together; past that the answer is 429.
package httpapi

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

// Service is what the API needs of the platform; *conversation.Service has it.
type Service interface {
	CreateConversation(ctx context.Context, r conversation.CreateRequest) (model.Conversation, error)
	Get(ctx context.Context, id string) (model.Conversation, error)
	List(ctx context.Context, cursor string, limit int) (items []model.Conversation, next string, err error)
	Rename(ctx context.Context, id, title string) (model.Conversation, error)
	Delete(ctx context.Context, id string) (model.Conversation, error)
	Send(ctx context.Context, id, clientMessageID, text string) (model.Turn, error)
	Interrupt(ctx context.Context, id string) (model.Turn, error)
	Turn(ctx context.Context, id, turnID string) (model.Turn, error)
	Events(ctx context.Context, id string, after int64, limit int) (items []model.Event, lastSeq int64, err error)
	Stream(ctx context.Context, id string, after int64) iter.Seq2[model.Event, error]
	Workspace(ctx context.Context, id string) (files sandbox.Files, account string, err error)
	CreateTerminal(ctx context.Context, id string, size sandbox.Size) (model.Terminal, error)
	Terminals(ctx context.Context, id string) ([]model.Terminal, error)
	DeleteTerminal(ctx context.Context, id, terminalID string) error
	AttachTerminal(ctx context.Context, id, terminalID string, o sandbox.AttachOptions) (sandbox.Attachment, error)
	Environments(ctx context.Context) ([]model.Environment, error)
	Agents(ctx context.Context) ([]model.Agent, error)
}

// Config is what a Server is made of.
type Config struct {
	Service Service
	// Doctor checks the machine; nil: the route gives an empty list.
	Doctor func(ctx context.Context) []wire.Finding
	// Ready says why the server can't serve yet; nil: always ready.
	Ready func(ctx context.Context) error
	// Console answers what isn't the API's; nil: those paths don't exist.
	Console http.Handler
	// Hosts are names, without port, that the server answers to beside the
	// loopback ones.
	Hosts   []string
	Version string
	Log     *slog.Logger
}

// maxStreams bounds event streams and terminals that are open at once.
const maxStreams = 1024

// Server is the API's http.Handler.
type Server struct {
	Config
	service Service
	log     *slog.Logger
	guard   *guard
	mux     *http.ServeMux
	api     huma.API
	spec    []byte

	streams  chan struct{} // a slot for each open stream
	drainOne sync.Once
	draining chan struct{}
	open     sync.WaitGroup // streams and terminals, which http.Server doesn't wait for once hijacked
}

// New makes the server. It fails only when the OpenAPI document can't be made.
func New(c Config) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		Config: c, service: c.Service, log: c.Log, guard: newGuard(c.Hosts), mux: http.NewServeMux(),
		streams: make(chan struct{}, maxStreams), draining: make(chan struct{}),
	}
	if err := s.routes(); err != nil {
		return nil, err
	}
	return s, nil
}

// Drain makes /readyz answer 503 and ends event streams and terminals; their
// clients reconnect elsewhere or later. Other requests go on.
func (s *Server) Drain() { s.drainOne.Do(func() { close(s.draining) }) }

// Wait returns when every stream and terminal has ended, or ctx did. Call it
// after Drain and after http.Server.Shutdown, so that none is added meanwhile.
func (s *Server) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { s.open.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// OpenAPI gives the OpenAPI 3.1 document as JSON.
func (s *Server) OpenAPI() []byte { return s.spec }

// openStream takes a slot for a long-lived answer. release must be called when
// it ended. The context that it gives ends with the request or with Drain.
func (s *Server) openStream(ctx context.Context) (inner context.Context, release func(), err error) {
	select {
	case <-s.draining:
		return nil, nil, fault.New(fault.Stopping, "")
	default:
	}
	select {
	case s.streams <- struct{}{}:
	default:
		return nil, nil, fault.New(fault.TooManyRequests, "%d event streams and terminals are open already; that is the limit.", maxStreams)
	}
	s.open.Add(1)
	inner, cancel := context.WithCancelCause(ctx)
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		select {
		case <-s.draining:
			cancel(errDraining)
		case <-inner.Done():
		}
	}()
	return inner, func() {
		cancel(nil)
		<-watch
		<-s.streams
		s.open.Done()
	}, nil
}

// errDraining ends streams when the server stops.
var errDraining = fault.New(fault.Stopping, "")
