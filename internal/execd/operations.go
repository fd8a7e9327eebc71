package execd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/astrabox/astrabox/internal/execd/operation"
	"github.com/astrabox/astrabox/internal/execd/process"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// headerOperation names the operation that is asked about.
	headerOperation = "X-EXECD-OPERATION-ID"
	// maxOperation bounds the body of an operation.
	maxOperation = 1 << 20
	// creationTime is how long an answer waits for the creation, so that most
	// say at once how it went.
	creationTime = time.Second

	codeInvalidOperation = "invalid_operation_request"
)

// operationStatus are the statuses of the codes of package operation.
var operationStatus = map[string]int{
	operation.CodeInvalidID: http.StatusBadRequest,
	operation.CodeKind:      http.StatusBadRequest,
	operation.CodeConflict:  http.StatusConflict,
	operation.CodeInstance:  http.StatusConflict,
	operation.CodeExpired:   http.StatusGone,
	operation.CodeNotFound:  http.StatusNotFound,
	operation.CodeCapacity:  http.StatusServiceUnavailable,
}

func refuseOperation(w http.ResponseWriter, err error) {
	var e *operation.Error
	if errors.As(err, &e) {
		refuse(w, operationStatus[e.Code], e.Code, e.Message)
		return
	}
	status, body, _ := startFailure(err)
	reply(w, status, body)
}

// decodeOperation reads a body strictly: a field that the daemon doesn't know
// could be one that the client relies on.
func decodeOperation(w http.ResponseWriter, r *http.Request, v any) bool {
	b, err := readBody(w, r, maxOperation)
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		refuse(w, http.StatusBadRequest, codeInvalidOperation, "the body is larger than 1 MiB")
		return false
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err = d.Decode(v); err == nil && len(bytes.TrimSpace(b[d.InputOffset():])) > 0 {
			err = errors.New("data after the value")
		}
	}
	if err != nil && !tooLate(w, err) {
		refuse(w, http.StatusBadRequest, codeInvalidOperation, "the body is not the JSON that this operation takes, and nothing else")
	}
	return err == nil
}

func (s *Server) postCommandOperation(w http.ResponseWriter, r *http.Request) {
	var req struct {
		wire.CommandRequest
		ID string `json:"operation_id"`
	}
	if !decodeOperation(w, r, &req) {
		return
	}
	if problem := invalidCommand(req.CommandRequest); problem != "" {
		refuse(w, http.StatusBadRequest, codeInvalidOperation, problem)
		return
	}
	request := sha256.Sum256(encode(req.CommandRequest))
	var run func(func(error))
	op, owner, err := s.operations.Claim(operation.Command, req.ID, request, func() (operation.Made, error) {
		cmd := req.CommandRequest
		dirProblem := oldDir(&cmd)
		rec, start, err := s.detached(r.Context(), cmd)
		if err != nil {
			return operation.Made{}, err
		}
		if run = start; dirProblem != nil {
			run = func(started func(error)) { rec.notStarted(dirProblem); started(dirProblem) }
		}
		return operation.Made{Handle: rec.id, Active: rec.active}, nil
	})
	if err != nil {
		refuseOperation(w, err)
		return
	}
	created := make(chan struct{})
	if owner {
		s.background.Go(func() {
			run(func(err error) {
				s.operations.Finish(operation.Command, req.ID, err != nil)
				close(created)
			})
		})
	}
	s.replyOperation(r.Context(), w, op, req.ID, owner, created)
}

func (s *Server) postProcessOperation(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Cwd     string `json:"cwd,omitempty"`
		Command string `json:"command,omitempty"`
		ID      string `json:"operation_id"`
	}
	if !decodeOperation(w, r, &req) {
		return
	}
	request := sha256.Sum256(encode([]string{req.Cwd, req.Command}))
	id := s.processes.NewID()
	op, owner, err := s.operations.Claim(operation.PTY, req.ID, request, func() (operation.Made, error) {
		return operation.Made{
			Handle: id,
			Active: func() bool {
				p, err := s.processes.Get(id)
				return err == nil && p.Status().State == process.Running
			},
			Drop: func() {
				ctx, cancel := context.WithTimeout(context.Background(), deleteTime)
				defer cancel()
				_ = s.processes.Delete(ctx, id) // it may have been deleted before
			},
		}, nil
	})
	if err != nil {
		refuseOperation(w, err)
		return
	}
	created := make(chan struct{})
	if owner {
		spec := oldSpec(req.Command, req.Cwd)
		spec.ID, spec.Once = id, true
		_, err := s.registerOld(context.WithoutCancel(r.Context()), spec)
		s.operations.Finish(operation.PTY, req.ID, err != nil)
		close(created)
	}
	s.replyOperation(r.Context(), w, op, req.ID, owner, created)
}

// replyOperation answers once the owner has created, or with what is known by then.
func (s *Server) replyOperation(ctx context.Context, w http.ResponseWriter, op operation.Operation, name string, owner bool, created <-chan struct{}) {
	if owner {
		patience := time.NewTimer(creationTime)
		defer patience.Stop()
		select {
		case <-created:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	if now, err := s.operations.Get(op.Kind, name); err == nil {
		op = now
	}
	status := http.StatusOK
	if op.State == operation.Creating {
		status = http.StatusAccepted
	}
	reply(w, status, op)
}

func (s *Server) getInstance(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, s.operations.Instance())
}

func (s *Server) getOperation(w http.ResponseWriter, r *http.Request) {
	op, err := s.operations.Get(r.URL.Query().Get("kind"), r.Header.Get(headerOperation))
	if err != nil {
		refuseOperation(w, err)
		return
	}
	status := http.StatusOK
	if op.State == operation.Creating {
		status = http.StatusAccepted
	}
	reply(w, status, op)
}

// makeDir makes a directory that the older protocol names, where it is missing.
func makeDir(dir string) error {
	if dir == "" {
		return nil
	}
	return os.MkdirAll(dir, 0o755)
}
