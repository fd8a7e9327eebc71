package store

import (
	"context"

	"github.com/astrabox/astrabox/internal/model"
)

const programColumns = `conversation_id, program, generation, process_id, output_at, machine, stdin_at, outbox, native_session, ready_by, failures`

// Program reads the stored state of a conversation's Agent program; ErrNotFound
// before the first.
func (s *Store) Program(ctx context.Context, conversationID string) (*model.Program, error) {
	return program(ctx, s, conversationID)
}

// Program is Store.Program in the transaction.
func (t *Tx) Program(conversationID string) (*model.Program, error) {
	return program(t.ctx, t, conversationID)
}

func program(ctx context.Context, q queryer, conversationID string) (*model.Program, error) {
	return one(ctx, q, func(r scanner) (*model.Program, error) {
		var p model.Program
		var machine string
		var ready int64
		err := r.Scan(&p.ConversationID, &p.Program, &p.Generation, &p.ProcessID, &p.OutputAt, &machine, &p.StdinAt, &p.Outbox, &p.NativeSession, &ready, &p.Failures)
		p.Machine, p.ReadyBy = []byte(machine), model.Time(ready)
		return &p, err
	}, `SELECT `+programColumns+` FROM programs WHERE conversation_id = $1`, conversationID)
}

// SaveProgram stores the whole state.
func (t *Tx) SaveProgram(p *model.Program) error {
	outbox := p.Outbox
	if outbox == nil {
		outbox = []byte{}
	}
	_, err := t.exec(`INSERT INTO programs (`+programColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
		ON CONFLICT (conversation_id) DO UPDATE SET program = excluded.program, generation = excluded.generation,
		process_id = excluded.process_id, output_at = excluded.output_at, machine = excluded.machine, stdin_at = excluded.stdin_at,
		outbox = excluded.outbox, native_session = excluded.native_session, ready_by = excluded.ready_by, failures = excluded.failures`,
		p.ConversationID, p.Program, p.Generation, p.ProcessID, p.OutputAt, string(p.Machine), p.StdinAt, outbox, p.NativeSession, ms(p.ReadyBy), p.Failures)
	return err
}

// AddLinePiece stores bytes of an output line whose end hasn't come yet.
func (t *Tx) AddLinePiece(conversationID string, start int64, data []byte) error {
	_, err := t.exec(`INSERT INTO program_lines (conversation_id, start_at, data) VALUES ($1, $2, $3)`, conversationID, start, data)
	return err
}

// DropLinePieces forgets them: the line ended, or its process did.
func (t *Tx) DropLinePieces(conversationID string) error {
	_, err := t.exec(`DELETE FROM program_lines WHERE conversation_id = $1`, conversationID)
	return err
}

// LinePieces gives the stored beginning of the current line.
func (s *Store) LinePieces(ctx context.Context, conversationID string) ([]byte, error) {
	pieces, err := all(ctx, s, func(r scanner) (b []byte, err error) { return b, r.Scan(&b) },
		`SELECT data FROM program_lines WHERE conversation_id = $1 ORDER BY start_at`, conversationID)
	var out []byte
	for _, p := range pieces {
		out = append(out, p...)
	}
	return out, err
}
