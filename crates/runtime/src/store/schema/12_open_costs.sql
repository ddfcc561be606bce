-- Attempts at models that may have cost something beside what is known (`LedgerEntry::cost_is_open`).
ALTER TABLE traces ADD COLUMN open_costs INTEGER NOT NULL DEFAULT 0;
UPDATE traces SET open_costs = (
    SELECT COUNT(*) FROM operations
    WHERE operations.of = traces.id AND kind = 'model' AND cost_usd IS NULL AND attempts > 0
          AND (status IN ('ok', 'unavailable', 'bad_response', 'canceled', 'content_filter')
               OR ifnull(input_tokens, 0) <> 0 OR ifnull(output_tokens, 0) <> 0)) WHERE model_calls > 0;
