package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

type createTerminalInput struct {
	Conv
	Body wire.CreateTerminal
}

type terminalInput struct {
	Conv
	TerminalID string `path:"tid" doc:"Id of the terminal."`
}

func (s *Server) terminalRoutes() {
	const tag = "terminals"
	register(s, operation{method: "POST", path: oneConversation + "/terminals", id: "create-terminal", tag: tag, status: http.StatusCreated,
		summary: "Open a terminal", description: "A shell of the conversation's account. It starts or resumes the sandbox."},
		func(ctx context.Context, in *createTerminalInput) (*body[model.Terminal], error) {
			t, err := s.service.CreateTerminal(ctx, in.ID, sandbox.Size{Cols: in.Body.Cols, Rows: in.Body.Rows})
			return &body[model.Terminal]{t}, err
		})
	register(s, operation{method: "GET", path: oneConversation + "/terminals", id: "list-terminals", tag: tag, summary: "List terminals, oldest first"},
		func(ctx context.Context, in *Conv) (*body[wire.Items[model.Terminal]], error) {
			items, err := s.service.Terminals(ctx, in.ID)
			return &body[wire.Items[model.Terminal]]{wire.Items[model.Terminal]{Items: notNil(items)}}, err
		})
	register(s, operation{method: "DELETE", path: oneConversation + "/terminals/{tid}", id: "delete-terminal", tag: tag, status: http.StatusNoContent,
		summary: "Close a terminal", description: "Ends everything that its shell started."},
		func(ctx context.Context, in *terminalInput) (*struct{}, error) {
			return nil, s.service.DeleteTerminal(ctx, in.ID, in.TerminalID)
		})
}

// The modes of an attachment.
const (
	modeWrite    = "write"
	modeTakeover = "takeover"
	modeWatch    = "watch"
)

// attachParams are the parameters of an attachment. since is -1 when it wasn't
// given: then all that is still held is wanted, and what is gone isn't missed.
type attachParams struct {
	since int64
	mode  string
}

func attachQuery(r *http.Request) (attachParams, error) {
	q, err := query(r, "since", "mode")
	if err != nil {
		return attachParams{}, err
	}
	p := attachParams{since: -1, mode: modeWrite}
	if v, ok := q["since"]; ok {
		if p.since, err = strconv.ParseInt(v, 10, 64); err != nil || p.since < 0 {
			return attachParams{}, fault.New(fault.RequestInvalid, "since must be an offset in bytes, 0 or more.")
		}
	}
	switch v := q["mode"]; v {
	case "":
	case modeWrite, modeTakeover, modeWatch:
		p.mode = v
	default:
		return attachParams{}, fault.New(fault.RequestInvalid, "mode must be write, takeover or watch.")
	}
	return p, nil
}

func (p attachParams) options() sandbox.AttachOptions {
	return sandbox.AttachOptions{From: max(p.since, 0), Takeover: p.mode == modeTakeover, ReadOnly: p.mode == modeWatch}
}
