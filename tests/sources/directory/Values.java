import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.MappingIterator;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.util.Base64;

/**
 * Reads a file for each line of its input, which holds "json" or "text" and the file in Base64, as
 * spooldir does. Answers with a line of values in Base64; a "!" at its end says that the file is
 * broken.
 */
class Values {
  public static void main(String[] arguments) throws Exception {
    ObjectMapper mapper =
        JsonMapper.builder()
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .nodeFactory(JsonNodeFactory.withExactBigDecimals(true))
            .build();
    var input = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = input.readLine()) != null; ) {
      String[] given = line.split(" ", -1);
      var content = new ByteArrayInputStream(Base64.getDecoder().decode(given[1]));
      var answer = new StringBuilder();
      try {
        if (given[0].equals("json")) {
          MappingIterator<JsonNode> nodes =
              mapper.readValues(mapper.getFactory().createParser(content), JsonNode.class);
          while (nodes.hasNext()) {
            add(answer, mapper.writeValueAsString(nodes.next()));
          }
        } else {
          var lines = new BufferedReader(new InputStreamReader(content, "UTF-8"));
          for (String text; (text = lines.readLine()) != null; ) {
            add(answer, text);
          }
        }
      } catch (java.io.IOException | RuntimeException error) {
        answer.append('!');
      }
      System.out.println(answer);
    }
  }

  private static void add(StringBuilder answer, String value) throws Exception {
    answer.append(Base64.getEncoder().encodeToString(value.getBytes("UTF-8"))).append(';');
  }
}
